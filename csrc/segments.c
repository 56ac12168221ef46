/* `Run` and `AgedRun`: what segments of chains are made of. No objects for the garbage collector: a segment refers to those
 * before it only, never in a circle. */
#include "segments.h"

#include <structmember.h>

Py_ssize_t
resident_blocks(const Run *run)
{
    if (run->keys && PyTuple_Check(run->keys))
        return PyTuple_GET_SIZE(run->keys);
    PyErr_SetString(PyExc_TypeError, "the keys of a segment are a tuple");
    return -1;
}

AgedRun *
as_aged_run(PyObject *given)
{
    if (PyObject_TypeCheck(given, &AgedRunType))
        return (AgedRun *)given;
    PyErr_Format(PyExc_TypeError, "%R is no segment with an age", given);
    return NULL;
}

PyObject *
deep_copy(PyObject *given, PyObject *memo)
{
    PyObject *module = PyImport_ImportModule("copy");
    PyObject *copy = module ? PyObject_CallMethod(module, "deepcopy", "OO", given, memo) : NULL;
    Py_XDECREF(module);
    return copy;
}

void *
doubled(void *array, Py_ssize_t *room, size_t size)
{
    void *larger = PyMem_Realloc(array, 2 * (size_t)*room * size);
    if (larger)
        *room *= 2;
    else
        PyErr_NoMemory();
    return larger;
}

/* Both types. */

static PyObject *
run_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(names))
{
    Run *self = (Run *)type->tp_alloc(type, 0);
    if (self) {
        self->keys = PyTuple_New(0);
        self->parent = Py_NewRef(Py_None);
        self->owner = Py_NewRef(Py_None);
    }
    return (PyObject *)self;
}

static int
run_init(Run *self, PyObject *args, PyObject *names)
{
    PyObject *number, *keys, *parent;
    if (!_PyArg_NoKeywords("Run", names) || !PyArg_UnpackTuple(args, "Run", 3, 3, &number, &keys, &parent))
        return -1;
    if (!PyTuple_Check(keys)) {
        PyErr_SetString(PyExc_TypeError, "the keys of a segment are a tuple");
        return -1;
    }
    long long name = PyLong_AsLongLong(number);
    if (name == -1 && PyErr_Occurred())
        return -1;
    self->number = name;
    Py_XSETREF(self->keys, Py_NewRef(keys));
    Py_XSETREF(self->parent, Py_NewRef(parent));
    return 0;
}

/* Those before it that nothing else refers to go one after the other: there may be more of them than the stack is deep. */
static void
drop_above(PyObject *above)
{
    while (above && Py_REFCNT(above) == 1 && PyObject_TypeCheck(above, &RunType)) {
        PyObject *next = ((Run *)above)->parent;
        ((Run *)above)->parent = NULL;
        Py_DECREF(above);
        above = next;
    }
    Py_XDECREF(above);
}

static void
run_dealloc(Run *self)
{
    PyObject *above = self->parent;
    Py_XDECREF(self->keys);
    Py_XDECREF(self->owner);
    Py_TYPE(self)->tp_free(self);
    drop_above(above);
}

static PyObject *
run_free(Run *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "give a number of blocks, and what is to be kept");
    Py_ssize_t most = PyNumber_AsSsize_t(args[0], PyExc_ValueError), blocks = resident_blocks(self), free = 0;
    if ((most == -1 && PyErr_Occurred()) || blocks < 0)
        return NULL;
    PyObject *keys = Py_NewRef(self->keys); /* asking may run code */
    int kept = 0;
    for (; free < most && free < blocks; free++)
        if ((kept = PySequence_Contains(args[1], PyTuple_GET_ITEM(keys, blocks - 1 - free))) != 0)
            break;
    Py_DECREF(keys);
    return kept < 0 ? NULL : PyLong_FromSsize_t(free);
}

static PyMethodDef run_methods[] = {
    {"free", (PyCFunction)(void (*)(void))run_free, METH_FASTCALL, NULL},
    {NULL},
};

static PyMemberDef run_members[] = {
    {"keys", T_OBJECT_EX, offsetof(Run, keys), 0, NULL},
    {"parent", T_OBJECT_EX, offsetof(Run, parent), 0, NULL},
    {"owner", T_OBJECT_EX, offsetof(Run, owner), 0, NULL},
    {"number", T_LONGLONG, offsetof(Run, number), READONLY, NULL},
    {"live", T_LONGLONG, offsetof(Run, live), 0, NULL},
    {NULL},
};

PyTypeObject RunType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvloft._table.Run",
    .tp_basicsize = sizeof(Run),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = run_new,
    .tp_init = (initproc)run_init,
    .tp_dealloc = (destructor)run_dealloc,
    .tp_methods = run_methods,
    .tp_members = run_members,
};

/* Those with an age. */

static PyObject *
aged_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    AgedRun *self = (AgedRun *)run_new(type, args, names);
    if (self) {
        if (PyObject_IS_GC((PyObject *)self))
            PyObject_GC_UnTrack(self); /* a subclass in Python */
        self->origin = Py_NewRef(Py_None);
        self->use = -1;
    }
    return (PyObject *)self;
}

static void
aged_dealloc(AgedRun *self)
{
    PyMem_Free(self->hashes);
    Py_XDECREF(self->origin);
    run_dealloc(&self->run);
}

static PyObject *
aged_size(AgedRun *self, void *Py_UNUSED(closure))
{
    Py_ssize_t resident = resident_blocks(&self->run);
    return resident < 0 ? NULL : PyLong_FromSsize_t(resident + self->evicted);
}

static PyMemberDef aged_members[] = {
    {"evicted", T_UINT, offsetof(AgedRun, evicted), READONLY, NULL},
    {"origin", T_OBJECT_EX, offsetof(AgedRun, origin), 0, NULL},
    {"kind", T_INT, offsetof(AgedRun, kind), 0, NULL},
    {"last", T_LONGLONG, offsetof(AgedRun, last), 0, NULL},
    {"use", T_LONGLONG, offsetof(AgedRun, use), 0, NULL},
    {"stamp", T_LONGLONG, offsetof(AgedRun, stamp), 0, NULL},
    {"reads", T_LONGLONG, offsetof(AgedRun, reads), 0, NULL},
    {"turn", T_LONGLONG, offsetof(AgedRun, turn), 0, NULL},
    {"branches", T_LONGLONG, offsetof(AgedRun, branches), 0, NULL},
    {"branches_reused", T_LONGLONG, offsetof(AgedRun, branches_reused), 0, NULL},
    {"ends", T_BOOL, offsetof(AgedRun, ends), 0, NULL},
    {"committed", T_BOOL, offsetof(AgedRun, committed), 0, NULL},
    {NULL},
};

static PyGetSetDef aged_values[] = {
    {"size", (getter)aged_size, NULL, NULL, NULL},
    {NULL},
};

PyTypeObject AgedRunType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvloft._table.AgedRun",
    .tp_base = &RunType,
    .tp_basicsize = sizeof(AgedRun),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = aged_new,
    .tp_dealloc = (destructor)aged_dealloc,
    .tp_members = aged_members,
    .tp_getset = aged_values,
};
