/* Functions of iterables of keys and numbers, of no table. */
#include "keys.h"

#include <stdlib.h>

/* Whether no two of the hashes are equal; a table of them is made in `seen`, of twice as many zeros at least. */
static int
all_differ(PyObject *items, uint64_t *seen, size_t mask)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        Py_hash_t hash = PyObject_Hash(PyList_GET_ITEM(items, i));
        if (hash == -1)
            return -1;
        uint64_t mark = (uint64_t)hash + !hash; /* never 0; then two marks may be equal where the hashes are not */
        size_t at = tag_of(hash) & mask;
        while (seen[at] && seen[at] != mark)
            at = (at + 1) & mask;
        if (seen[at])
            return 0;
        seen[at] = mark;
    }
    return 1;
}

PyObject *
distinct(PyObject *Py_UNUSED(module), PyObject *given)
{
    PyObject *items = PySequence_List(given); /* a list of our own: nobody can change it */
    if (!items)
        return NULL;
    size_t size = 8;
    while (size < 2 * (size_t)PyList_GET_SIZE(items))
        size *= 2;
    uint64_t *seen = calloc(size, sizeof(*seen));
    int differ = seen ? all_differ(items, seen, size - 1) : -1;
    if (!seen)
        PyErr_NoMemory();
    free(seen);
    if (differ > 0)
        return items;
    PyObject *once = differ < 0 ? NULL : PyObject_CallMethod((PyObject *)&PyDict_Type, "fromkeys", "O", items);
    Py_DECREF(items);
    PyObject *list = once ? PySequence_List(once) : NULL;
    Py_XDECREF(once);
    return list;
}

/* The collector lets such tuples alone as well, but only after it has visited each of their keys once. */
PyObject *
untracked(PyObject *Py_UNUSED(module), PyObject *given)
{
    PyObject *tuple = PySequence_Tuple(given);
    for (Py_ssize_t i = 0; tuple && i < PyTuple_GET_SIZE(tuple); i++)
        if (PyObject_IS_GC(PyTuple_GET_ITEM(tuple, i)))
            return tuple; /* it may be part of a cycle */
    if (tuple && PyTuple_CheckExact(tuple))
        PyObject_GC_UnTrack(tuple);
    return tuple;
}

PyObject *
ascending(PyObject *Py_UNUSED(module), PyObject *given)
{
    PyObject *values = PyObject_GetIter(given), *value;
    long long last = LLONG_MIN;
    bool ascends = true;
    while (values && ascends && (value = PyIter_Next(values))) {
        long long number = value == Py_None ? -1 : PyLong_AsLongLong(value);
        ascends = value != Py_None && number >= last && !(number == -1 && PyErr_Occurred());
        Py_DECREF(value);
        last = number;
    }
    Py_XDECREF(values);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(ascends);
}
