/* `Homes`: a number for each key, that of the segment it is in. */
#include "segments.h"

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

static PyObject *
homes_absent(Homes *self, PyObject *given)
{
    return keys_pick(&self->keys, given, is_absent, 0);
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
homes_put(Homes *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "give keys and a number");
    long long home = PyLong_AsLongLong(args[1]);
    Batch batch;
    if ((home == -1 && PyErr_Occurred()) || keys_may_change(&self->keys) < 0 ||
        batch_find(&batch, &self->keys, args[0]) < 0)
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

/* Segments, whose blocks have the segment's number. */

static bool
as_run(PyObject *given)
{
    if (PyObject_TypeCheck(given, &RunType))
        return resident_blocks((Run *)given) >= 0;
    PyErr_Format(PyExc_TypeError, "%R is no segment", given);
    return false;
}

/* Leave a segment its first keys. Those that stay are not touched, if nobody else has the tuple: there may be thousands. */
static int
shorten(Run *run, Py_ssize_t count)
{
    if (!as_run((PyObject *)run))
        return -1; /* the keys that left have changed it */
    count = Py_MIN(count, PyTuple_GET_SIZE(run->keys));
    bool tracked = PyObject_GC_IsTracked(run->keys);
    if (count && Py_REFCNT(run->keys) == 1 && PyTuple_CheckExact(run->keys)) {
        if (_PyTuple_Resize(&run->keys, count) < 0)
            return -1;
        if (!tracked)
            PyObject_GC_UnTrack(run->keys);
        return 0;
    }
    PyObject *keys = PyTuple_GetSlice(run->keys, 0, count);
    if (keys && !tracked)
        PyObject_GC_UnTrack(keys); /* as `untracked` */
    if (keys)
        Py_SETREF(run->keys, keys);
    return keys ? 0 : -1;
}

static PyObject *
homes_cut(Homes *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "give a segment, and how many of its blocks leave");
    Py_ssize_t n = PyNumber_AsSsize_t(args[1], PyExc_ValueError);
    if ((n == -1 && PyErr_Occurred()) || !as_run(args[0]))
        return NULL;
    Run *run = (Run *)args[0];
    Py_ssize_t size = PyTuple_GET_SIZE(run->keys);
    if (n < 0 || n > size)
        return PyErr_Format(PyExc_ValueError, "%zd of %zd blocks are to leave", n, size);
    Py_ssize_t at = size - n;
    PyObject *left = PyList_New(n);
    for (Py_ssize_t i = 0; left && i < n; i++)
        PyList_SET_ITEM(left, i, Py_NewRef(PyTuple_GET_ITEM(run->keys, at + i)));
    PyObject *done = left ? homes_remove(self, left) : NULL;
    if (!done || PyList_Reverse(left) < 0 || shorten(run, at) < 0)
        Py_CLEAR(left);
    Py_XDECREF(done);
    return left;
}

static int
equal(PyObject *one, PyObject *other)
{
    if (one == other || same_bytes(one, other))
        return 1;
    return PyBytes_CheckExact(one) && PyBytes_CheckExact(other) ? 0 : PyObject_RichCompareBool(one, other, Py_EQ);
}

/* Length of the common part of two tuples from these places on, -1 with an exception set. */
static Py_ssize_t
common(PyObject *one, Py_ssize_t from, PyObject *other, Py_ssize_t place)
{
    Py_ssize_t most = Py_MIN(PyTuple_GET_SIZE(one) - from, PyTuple_GET_SIZE(other) - place), same = 0;
    for (; same < most; same++) {
        int is = equal(PyTuple_GET_ITEM(one, from + same), PyTuple_GET_ITEM(other, place + same));
        if (is < 0)
            return -1;
        if (!is)
            break;
    }
    return same;
}

/* The segment of a key, by its number; a new reference. */
static PyObject *
segment_of(Homes *self, PyObject *key, PyObject *segments)
{
    PyObject *number = homes_subscript(self, key);
    PyObject *segment = number ? PyDict_GetItemWithError(segments, number) : NULL;
    if (number && !segment && !PyErr_Occurred())
        PyErr_SetObject(PyExc_KeyError, number);
    Py_XDECREF(number);
    return segment && as_run(segment) ? Py_NewRef(segment) : NULL;
}

/* Where a chain is at its place `at`: the segment, a new reference, and up to which place in it the two are the same. To one that
 * the chain does not cover whole it may come back. */
static PyObject *
meet(Homes *self, PyObject *chain, Py_ssize_t at, PyObject *segments, Py_ssize_t *place, Py_ssize_t *same, bool *whole)
{
    PyObject *key = PyTuple_GET_ITEM(chain, at), *segment = segment_of(self, key, segments);
    if (!segment)
        return NULL;
    PyObject *keys = Py_NewRef(((Run *)segment)->keys);
    Py_ssize_t first = 0, size = PyTuple_GET_SIZE(keys);
    int is = 0;
    while (first < size && (is = equal(PyTuple_GET_ITEM(keys, first), key)) == 0)
        first++;
    *same = is > 0 ? common(chain, at, keys, first) : -1;
    *place = first + *same;
    *whole = !first && *place == size;
    Py_DECREF(keys);
    if (*same >= 0)
        return segment;
    if (is == 0)
        PyErr_SetObject(PyExc_KeyError, key);
    Py_DECREF(segment);
    return NULL;
}

static PyObject *
homes_along(Homes *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyTuple_Check(args[0]) || !PyDict_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "give a chain in a tuple, a place in it, and segments by number");
    Py_ssize_t at = PyNumber_AsSsize_t(args[1], PyExc_ValueError), place = 0, same = 0;
    PyObject *segments = at == -1 && PyErr_Occurred() ? NULL : PyList_New(0);
    if (segments && at < 0)
        at = PyTuple_GET_SIZE(args[0]);
    for (bool whole = true; segments && whole && at < PyTuple_GET_SIZE(args[0]); at += same) {
        PyObject *segment = meet(self, args[0], at, args[2], &place, &same, &whole);
        if (!segment || PyList_Append(segments, segment) < 0)
            Py_CLEAR(segments);
        Py_XDECREF(segment);
    }
    return segments ? Py_BuildValue("(Nnn)", segments, place, at) : NULL;
}

/* The type. */

static PyObject *
homes_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *known[] = {"room", "touch", NULL};
    Py_ssize_t room = 0;
    int touch = 1;
    if (!PyArg_ParseTupleAndKeywords(args, names, "|np", known, &room, &touch))
        return NULL;
    Homes *self = (Homes *)type->tp_alloc(type, 0);
    if (self && keys_init(&self->keys, room, touch) < 0)
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
    {"absent", (PyCFunction)homes_absent, METH_O, NULL},
    {"runs", (PyCFunction)homes_runs, METH_O, NULL},
    {"put", (PyCFunction)(void (*)(void))homes_put, METH_FASTCALL, NULL},
    {"remove", (PyCFunction)homes_remove, METH_O, NULL},
    {"cut", (PyCFunction)(void (*)(void))homes_cut, METH_FASTCALL, NULL},
    {"along", (PyCFunction)(void (*)(void))homes_along, METH_FASTCALL, NULL},
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
