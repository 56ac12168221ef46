/* Functions of iterables of keys and arrays of numbers, of no table. */
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

/* Numbers. */

PyObject *array_type;

PyObject *
new_array(Py_ssize_t count, Py_buffer *view)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    PyObject *array = bytes ? PyObject_CallFunction(array_type, "sO", "q", bytes) : NULL;
    Py_XDECREF(bytes);
    if (array && PyObject_GetBuffer(array, view, PyBUF_WRITABLE) < 0)
        Py_CLEAR(array);
    return array;
}

Py_ssize_t
read_numbers(PyObject *given, uint32_t end, const char *what, uint32_t **numbers)
{
    PyObject *list = PySequence_List(given); /* a list of our own: `__index__` of an item cannot change it */
    if (!list)
        return -1;
    Py_ssize_t count = PyList_GET_SIZE(list), at = 0;
    *numbers = malloc(sizeof(uint32_t) * (size_t)(count + 1));
    if (!*numbers)
        PyErr_NoMemory();
    for (; *numbers && at < count; at++) {
        Py_ssize_t number = PyNumber_AsSsize_t(PyList_GET_ITEM(list, at), PyExc_ValueError);
        if (number == -1 && PyErr_Occurred())
            break;
        if (number < 0 || number >= end) {
            PyErr_Format(PyExc_ValueError, "%zd is none of the %u %s, which are counted from 0", number, end, what);
            break;
        }
        (*numbers)[at] = (uint32_t)number;
    }
    Py_DECREF(list);
    if (*numbers && at == count)
        return count;
    free(*numbers);
    return -1;
}

/* An array of numbers of 8 bytes each. */
static int
get_numbers(PyObject *given, Py_buffer *view, bool writable)
{
    if (PyObject_GetBuffer(given, view, PyBUF_FORMAT | PyBUF_ND | (writable ? PyBUF_WRITABLE : 0)) < 0)
        return -1;
    if (view->ndim == 1 && view->itemsize == sizeof(int64_t) && view->format && strchr("lq", view->format[0]))
        return 0;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "give arrays of one dimension of int64");
    return -1;
}

static int
exchange_numbers(const Py_buffer *table, const Py_buffer *places, const Py_buffer *values)
{
    int64_t *held = table->buf, *place = places->buf, *value = values->buf;
    Py_ssize_t size = table->len / table->itemsize, count = places->len / places->itemsize;
    if (values->len != places->len) {
        PyErr_SetString(PyExc_ValueError, "give as many values as places");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (place[i] < 0 || place[i] >= size) {
            PyErr_Format(PyExc_IndexError, "%lld is no place from 0 to %zd", (long long)place[i], size - 1);
            return -1;
        }
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t before = held[place[i]];
        held[place[i]] = value[i];
        value[i] = before;
    }
    return 0;
}

PyObject *
exchange(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[3];
    Py_buffer views[3];
    int got = 0;
    if (!PyArg_ParseTuple(args, "OOO", &given[0], &given[1], &given[2]))
        return NULL;
    while (got < 3 && get_numbers(given[got], &views[got], got != 1) == 0)
        got++;
    int done = got == 3 ? exchange_numbers(&views[0], &views[1], &views[2]) : -1;
    while (got--)
        PyBuffer_Release(&views[got]);
    return done < 0 ? NULL : Py_NewRef(Py_None);
}
