/* `Homes`: a number for each key, that of the segment it is in. */
#include "keys.h"

typedef Table Homes;

static PyObject *
homes_get(Homes *self, PyObject *key)
{
    uint32_t number;
    if (keys_find(&self->keys, key, &number) < 0)
        return NULL;
    return number == NONE ? Py_NewRef(Py_None) : PyLong_FromLongLong(self->keys.entries[number].home);
}

static PyObject *
homes_subscript(Homes *self, PyObject *key)
{
    PyObject *home = homes_get(self, key);
    if (home != Py_None)
        return home;
    Py_DECREF(home);
    PyErr_SetObject(PyExc_KeyError, key);
    return NULL;
}

static PyObject *
homes_present(Homes *self, PyObject *given)
{
    return keys_pick(&self->keys, given, is_present, 0);
}

/* Keys that follow each other and have the same home are told together. */
static PyObject *
homes_runs(Homes *self, PyObject *given)
{
    PyObject *runs = PyList_New(0);
    Batch batch;
    if (!runs || batch_find_all(&batch, &self->keys, given) < 0) {
        Py_XDECREF(runs);
        return NULL;
    }
    for (Py_ssize_t start = 0, end; runs && start < batch.count; start = end) {
        int64_t home = self->keys.entries[batch.numbers[start]].home;
        for (end = start + 1; end < batch.count && self->keys.entries[batch.numbers[end]].home == home;)
            end++;
        PyObject *run = Py_BuildValue("(Ln)", (long long)home, end - start);
        if (!run || PyList_Append(runs, run) < 0)
            Py_CLEAR(runs);
        Py_XDECREF(run);
    }
    batch_free(&batch);
    return runs;
}

static PyObject *
homes_put(Homes *self, PyObject *args)
{
    PyObject *given;
    long long home;
    Batch batch;
    if (!PyArg_ParseTuple(args, "OL", &given, &home) || keys_may_change(&self->keys) < 0 ||
        batch_find(&batch, &self->keys, given) < 0)
        return NULL;
    bool added = batch_reserve(&batch) == 0 && batch_add(&batch, false) == 0;
    for (Py_ssize_t i = 0; added && i < batch.count; i++)
        self->keys.entries[batch.numbers[i] & ~WAS_IN].home = home;
    batch_free(&batch);
    return added ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
homes_remove(Homes *self, PyObject *given)
{
    Batch batch;
    if (keys_may_change(&self->keys) < 0 || batch_find_all(&batch, &self->keys, given) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < batch.count; i++) {
        batch_ahead(&batch, i);
        if (!self->keys.entries[batch.numbers[i]].key)
            continue; /* named twice */
        PyObject *key = keys_remove(&self->keys, batch.numbers[i], batch.tags[i]);
        keys_give_back(&self->keys, batch.numbers[i]);
        Py_DECREF(key);
    }
    batch_free(&batch);
    Py_RETURN_NONE;
}

/* The type. */

static PyObject *
homes_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *known[] = {"room", NULL};
    Py_ssize_t room = 0;
    if (!PyArg_ParseTupleAndKeywords(args, names, "|n", known, &room))
        return NULL;
    Homes *self = (Homes *)type->tp_alloc(type, 0);
    if (self && keys_init(&self->keys, room) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *
homes_copy(Homes *self, PyObject *Py_UNUSED(memo))
{
    Homes *copy = (Homes *)Py_TYPE(self)->tp_alloc(Py_TYPE(self), 0);
    if (copy && keys_copy(&copy->keys, &self->keys) < 0)
        Py_CLEAR(copy);
    return (PyObject *)copy;
}

static PyMethodDef methods[] = {
    {"get", (PyCFunction)homes_get, METH_O, NULL},
    {"present", (PyCFunction)homes_present, METH_O, NULL},
    {"runs", (PyCFunction)homes_runs, METH_O, NULL},
    {"put", (PyCFunction)homes_put, METH_VARARGS, NULL},
    {"remove", (PyCFunction)homes_remove, METH_O, NULL},
    {"__copy__", (PyCFunction)homes_copy, METH_NOARGS, NULL},
    {"__deepcopy__", (PyCFunction)homes_copy, METH_O, NULL},
    {NULL},
};

static PyMappingMethods mapping = {
    .mp_length = (lenfunc)table_len,
    .mp_subscript = (binaryfunc)homes_subscript,
};

static PySequenceMethods sequence = {
    .sq_contains = (objobjproc)table_contains,
};

PyTypeObject HomesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvloft._table.Homes",
    .tp_basicsize = sizeof(Homes),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = homes_new,
    .tp_iter = (getiterfunc)table_iter,
    .tp_dealloc = (destructor)table_dealloc,
    .tp_methods = methods,
    .tp_as_mapping = &mapping,
    .tp_as_sequence = &sequence,
};
