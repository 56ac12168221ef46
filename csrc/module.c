/* `kvloft._table`: what the pool and its policies keep for each block. See src/kvloft/_table.pyi for what it does. */
#include "segments.h"

static PyMethodDef functions[] = {
    {"distinct", distinct, METH_O, NULL},
    {"exchange", exchange, METH_VARARGS, NULL},
    {"untracked", untracked, METH_O, NULL},
    {"ascending", ascending, METH_O, NULL},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_table",
    .m_methods = functions,
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__table(void)
{
    if (PyType_Ready(&IndexType) < 0 || PyType_Ready(&AnswersType) < 0 || PyType_Ready(&QueuesType) < 0 ||
        PyType_Ready(&HomesType) < 0 || PyType_Ready(&RunType) < 0 || PyType_Ready(&AgedRunType) < 0 ||
        PyType_Ready(&AgesType) < 0 || PyType_Ready(&UsesType) < 0 ||
        PyType_Ready(&GhostsType) < 0 || PyType_Ready(&ShadowType) < 0)
        return NULL;
    PyObject *arrays = PyImport_ImportModule("array");
    array_type = arrays ? PyObject_GetAttrString(arrays, "array") : NULL;
    Py_XDECREF(arrays);
    if (!array_type)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made && (PyModule_AddObjectRef(made, "Index", (PyObject *)&IndexType) < 0 ||
                 PyModule_AddObjectRef(made, "Queues", (PyObject *)&QueuesType) < 0 ||
                 PyModule_AddObjectRef(made, "Homes", (PyObject *)&HomesType) < 0 ||
                 PyModule_AddObjectRef(made, "Run", (PyObject *)&RunType) < 0 ||
                 PyModule_AddObjectRef(made, "AgedRun", (PyObject *)&AgedRunType) < 0 ||
                 PyModule_AddObjectRef(made, "Ages", (PyObject *)&AgesType) < 0 ||
                 PyModule_AddObjectRef(made, "Uses", (PyObject *)&UsesType) < 0 ||
                 PyModule_AddObjectRef(made, "Ghosts", (PyObject *)&GhostsType) < 0 ||
                 PyModule_AddObjectRef(made, "ShadowLRU", (PyObject *)&ShadowType) < 0))
        Py_CLEAR(made);
    return made;
}
