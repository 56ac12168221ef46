/* `Queues`: distinct keys in one of a few queues, each from the least to the most recent. */
#include "keys.h"

#include <stdlib.h>

#define RING ((1u << 30) - 1) /* what `newer` can hold: any number */

/* The first numbers are the queues themselves: each closes the ring of its keys, so every key has neighbours. A gap is a
 * number in a ring that has no key. */
typedef struct {
    PyObject_HEAD
    Keys keys;
    uint32_t queues;
    uint32_t sizes[4];
} Queues;

static void
close_rings(Queues *self)
{
    for (uint32_t queue = 0; queue < self->queues; queue++) {
        self->keys.entries[queue] = (Entry){.newer = queue & RING, .older = queue, .queue = queue & 3};
        self->sizes[queue] = 0;
    }
}

static void
leave_queue(Queues *self, uint32_t number)
{
    Entry *entries = self->keys.entries, *entry = &entries[number];
    entries[entry->newer].older = entry->older;
    entries[entry->older].newer = entry->newer;
    self->sizes[entry->queue]--;
}

static void
enter_queue(Queues *self, uint32_t number, uint32_t queue)
{
    Entry *entries = self->keys.entries, *entry = &entries[number];
    entry->queue = queue & 3;
    entry->newer = queue & RING;
    entry->older = entries[queue].older;
    entries[entry->older].newer = number & RING;
    entries[queue].older = number;
    self->sizes[queue]++;
}

/* Put one number where another is in a ring, which is in none afterwards. */
static void
replace(Queues *self, uint32_t number, uint32_t by)
{
    Entry *entries = self->keys.entries, *entry = &entries[by];
    entry->queue = entries[number].queue;
    entry->newer = entries[number].newer;
    entry->older = entries[number].older;
    entries[entry->newer].older = by;
    entries[entry->older].newer = by & RING;
}

static int
check_queue(const Queues *self, Py_ssize_t queue)
{
    if (queue >= 0 && queue < self->queues)
        return 0;
    PyErr_Format(PyExc_ValueError, "queue: %zd is none of the %u queues, which are counted from 0", queue, self->queues);
    return -1;
}

/* Asking. */

static PyObject *
queues_queue(Queues *self, PyObject *key)
{
    uint32_t number;
    if (keys_find(&self->keys, key, &number) < 0)
        return NULL;
    return number == NONE ? Py_NewRef(Py_None) : PyLong_FromLong(self->keys.entries[number].queue);
}

static PyObject *
queues_size(Queues *self, PyObject *args)
{
    Py_ssize_t queue;
    if (!PyArg_ParseTuple(args, "n", &queue) || check_queue(self, queue) < 0)
        return NULL;
    return PyLong_FromUnsignedLong(self->sizes[queue]);
}

static bool
is_in(const Entry *entry, unsigned queue)
{
    return entry && entry->queue == queue;
}

static PyObject *
queues_present(Queues *self, PyObject *args)
{
    PyObject *given;
    Py_ssize_t queue = -1;
    if (!PyArg_ParseTuple(args, "O|n", &given, &queue) || (PyTuple_GET_SIZE(args) > 1 && check_queue(self, queue) < 0))
        return NULL;
    return keys_pick(&self->keys, given, queue < 0 ? is_present : is_in, (unsigned)queue);
}

static PyObject *
queues_absent(Queues *self, PyObject *given)
{
    return keys_pick(&self->keys, given, is_absent, 0);
}

static int
is_kept(PyObject *keep, PyObject *key)
{
    return PyAnySet_Check(keep) ? PySet_Contains(keep, key) : PySequence_Contains(keep, key);
}

static PyObject *
oldest(Queues *self, Py_ssize_t n, PyObject *keep, uint32_t queue)
{
    PyObject *found = PyList_New(0);
    const Entry *entries = self->keys.entries;
    if (!found || keys_enter(&self->keys) < 0) {
        Py_XDECREF(found);
        return NULL;
    }
    for (uint32_t number = entries[queue].newer; found && n > 0 && number != queue; number = entries[number].newer) {
        PyObject *key = entries[number].key;
        __builtin_prefetch(entries[entries[number].newer].key);
        if (!key)
            continue; /* a gap */
        int kept = keep ? is_kept(keep, key) : 0;
        if (kept < 0 || (!kept && PyList_Append(found, key) < 0))
            Py_CLEAR(found);
        n -= !kept;
    }
    keys_leave(&self->keys);
    return found;
}

static PyObject *
queues_oldest(Queues *self, PyObject *args)
{
    Py_ssize_t n, queue = 0;
    PyObject *keep;
    if (!PyArg_ParseTuple(args, "nO|n", &n, &keep, &queue) || check_queue(self, queue) < 0)
        return NULL;
    bool none = PyAnySet_CheckExact(keep) && PySet_GET_SIZE(keep) == 0;
    return oldest(self, n, none ? NULL : keep, (uint32_t)queue);
}

static PyObject *
queues_keys(Queues *self, PyObject *args)
{
    Py_ssize_t queue = 0;
    if (!PyArg_ParseTuple(args, "|n", &queue) || check_queue(self, queue) < 0)
        return NULL;
    return oldest(self, PY_SSIZE_T_MAX, NULL, (uint32_t)queue);
}

static PyObject *
queues_newest(Queues *self, PyObject *args)
{
    Py_ssize_t queue = 0;
    if (!PyArg_ParseTuple(args, "|n", &queue) || check_queue(self, queue) < 0)
        return NULL;
    const Entry *entries = self->keys.entries;
    uint32_t number = entries[queue].older;
    while (!entries[number].key && number != queue)
        number = entries[number].older;
    return Py_NewRef(entries[number].key ? entries[number].key : Py_None);
}

/* Changing. */

static PyObject *
queues_add(Queues *self, PyObject *args)
{
    PyObject *given;
    Py_ssize_t queue = 0;
    Batch batch;
    if (!PyArg_ParseTuple(args, "O|n", &given, &queue) || check_queue(self, queue) < 0 || keys_may_change(&self->keys) < 0 ||
        batch_find(&batch, &self->keys, given) < 0)
        return NULL;
    bool added = batch_reserve(&batch) == 0 && batch_add(&batch, false) == 0;
    for (Py_ssize_t i = 0; added && i < batch.count; i++)
        if (!(batch.numbers[i] & WAS_IN))
            enter_queue(self, batch.numbers[i], (uint32_t)queue);
    batch_free(&batch);
    return added ? Py_NewRef(Py_None) : NULL;
}

/* Each key to the recent end of a queue: `queue`, or its own if that is negative. */
static PyObject *
move(Queues *self, PyObject *given, Py_ssize_t queue)
{
    Batch batch;
    if (keys_may_change(&self->keys) < 0 || batch_find_all(&batch, &self->keys, given) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < batch.count; i++) {
        batch_ahead(&batch, i);
        uint32_t number = batch.numbers[i], own = self->keys.entries[number].queue;
        leave_queue(self, number);
        enter_queue(self, number, queue < 0 ? own : (uint32_t)queue);
    }
    batch_free(&batch);
    Py_RETURN_NONE;
}

static PyObject *
queues_touch(Queues *self, PyObject *given)
{
    return move(self, given, -1);
}

static PyObject *
queues_move(Queues *self, PyObject *args)
{
    PyObject *given;
    Py_ssize_t queue;
    if (!PyArg_ParseTuple(args, "On", &given, &queue) || check_queue(self, queue) < 0)
        return NULL;
    return move(self, given, queue);
}

/* Gaps. */

static PyObject *
queues_lift(Queues *self, PyObject *args)
{
    PyObject *given;
    Py_ssize_t queue;
    Batch batch;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "On", &given, &queue) || check_queue(self, queue) < 0 || keys_may_change(&self->keys) < 0 ||
        batch_find_all(&batch, &self->keys, given) < 0)
        return NULL;
    PyObject *gaps = keys_reserve(&self->keys, 0, (uint64_t)batch.count) < 0 ? NULL : new_array(batch.count, &view);
    for (Py_ssize_t i = 0; gaps && i < batch.count; i++) {
        batch_ahead(&batch, i);
        uint32_t number = batch.numbers[i], gap = keys_take_number(&self->keys);
        self->keys.entries[gap] = (Entry){.key = NULL};
        self->sizes[self->keys.entries[number].queue]--;
        replace(self, number, gap);
        enter_queue(self, number, (uint32_t)queue);
        ((int64_t *)view.buf)[i] = gap;
    }
    batch_free(&batch);
    if (gaps)
        PyBuffer_Release(&view);
    return gaps;
}

/* A number in a ring has it as neighbour; one that is in none, does not. */
static bool
is_gap(const Queues *self, uint32_t number)
{
    const Keys *keys = &self->keys;
    const Entry *entry = &keys->entries[number];
    return number >= self->queues && !entry->key && entry->newer < keys->fresh && entry->older < keys->fresh &&
           keys->entries[entry->newer].older == number && keys->entries[entry->older].newer == number;
}

/* Numbers of different gaps; their count, or -1 with an exception set. */
static Py_ssize_t
read_gaps(Queues *self, PyObject *given, uint32_t **gaps)
{
    if (keys_enter(&self->keys) < 0)
        return -1;
    Py_ssize_t count = read_numbers(given, self->keys.fresh, "numbers", gaps);
    keys_leave(&self->keys);
    for (Py_ssize_t i = 0; i < count; i++)
        if (!is_gap(self, (*gaps)[i])) {
            PyErr_Format(PyExc_ValueError, "%u is no gap", (*gaps)[i]);
            free(*gaps);
            return -1;
        }
    return count;
}

static void
close_gap(Queues *self, uint32_t gap)
{
    self->sizes[self->keys.entries[gap].queue]++; /* it counted nowhere */
    leave_queue(self, gap);
    keys_give_back(&self->keys, gap);
}

static PyObject *
queues_close(Queues *self, PyObject *given)
{
    uint32_t *gaps;
    Py_ssize_t count = keys_may_change(&self->keys) < 0 ? -1 : read_gaps(self, given, &gaps);
    if (count < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        if (is_gap(self, gaps[i])) /* else named twice */
            close_gap(self, gaps[i]);
    free(gaps);
    Py_RETURN_NONE;
}

static PyObject *
queues_put_back(Queues *self, PyObject *args)
{
    PyObject *given, *given_gaps;
    uint32_t *gaps;
    Batch batch;
    if (!PyArg_ParseTuple(args, "OO", &given, &given_gaps) || keys_may_change(&self->keys) < 0)
        return NULL;
    Py_ssize_t count = read_gaps(self, given_gaps, &gaps);
    if (count < 0)
        return NULL;
    if (batch_find_all(&batch, &self->keys, given) < 0) {
        free(gaps);
        return NULL;
    }
    bool fits = batch.count == count;
    if (!fits)
        PyErr_Format(PyExc_ValueError, "%zd keys for %zd gaps", batch.count, count);
    for (Py_ssize_t i = 0; fits && i < count; i++) {
        if (!is_gap(self, gaps[i]))
            continue; /* named twice */
        leave_queue(self, batch.numbers[i]);
        replace(self, gaps[i], batch.numbers[i]);
        self->sizes[self->keys.entries[batch.numbers[i]].queue]++;
        keys_give_back(&self->keys, gaps[i]);
    }
    batch_free(&batch);
    free(gaps);
    return fits ? Py_NewRef(Py_None) : NULL;
}

/* Leaving. */

static PyObject *
queues_remove(Queues *self, PyObject *given)
{
    Batch batch;
    if (keys_may_change(&self->keys) < 0 || batch_find_all(&batch, &self->keys, given) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < batch.count; i++) {
        batch_ahead(&batch, i);
        if (!self->keys.entries[batch.numbers[i]].key)
            continue; /* named twice */
        leave_queue(self, batch.numbers[i]);
        PyObject *key = keys_remove(&self->keys, batch.numbers[i], batch.tags[i]);
        keys_give_back(&self->keys, batch.numbers[i]);
        Py_DECREF(key);
    }
    batch_free(&batch);
    Py_RETURN_NONE;
}

static PyObject *
queues_clear(Queues *self, PyObject *Py_UNUSED(ignored))
{
    if (keys_may_change(&self->keys) < 0)
        return NULL;
    close_rings(self);
    keys_clear(&self->keys, self->queues);
    Py_RETURN_NONE;
}

/* The type. */

static PyObject *
queues_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *known[] = {"room", "queues", NULL};
    Py_ssize_t room = 0, queues = 1;
    if (!PyArg_ParseTupleAndKeywords(args, names, "|nn", known, &room, &queues))
        return NULL;
    if (queues < 1 || queues > 4)
        return PyErr_Format(PyExc_ValueError, "queues: %zd is no number of queues from 1 to 4", queues);
    if (room < 0 || room > MOST - queues)
        return PyErr_Format(PyExc_ValueError, "room: %zd is no number of keys from 0 to %zd", room, MOST - queues);
    Queues *self = (Queues *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    if (keys_init(&self->keys, room + queues, true) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->queues = self->keys.fresh = (uint32_t)queues;
    close_rings(self);
    return (PyObject *)self;
}

static PyObject *
queues_copy(Queues *self, PyObject *Py_UNUSED(memo))
{
    Queues *copy = (Queues *)Py_TYPE(self)->tp_alloc(Py_TYPE(self), 0);
    if (!copy)
        return NULL;
    copy->queues = self->queues;
    memcpy(copy->sizes, self->sizes, sizeof(self->sizes));
    if (keys_copy(&copy->keys, &self->keys) < 0)
        Py_CLEAR(copy);
    return (PyObject *)copy;
}

static PyMethodDef methods[] = {
    {"queue", (PyCFunction)queues_queue, METH_O, NULL},
    {"size", (PyCFunction)queues_size, METH_VARARGS, NULL},
    {"keys", (PyCFunction)queues_keys, METH_VARARGS, NULL},
    {"present", (PyCFunction)queues_present, METH_VARARGS, NULL},
    {"absent", (PyCFunction)queues_absent, METH_O, NULL},
    {"oldest", (PyCFunction)queues_oldest, METH_VARARGS, NULL},
    {"newest", (PyCFunction)queues_newest, METH_VARARGS, NULL},
    {"add", (PyCFunction)queues_add, METH_VARARGS, NULL},
    {"touch", (PyCFunction)queues_touch, METH_O, NULL},
    {"move", (PyCFunction)queues_move, METH_VARARGS, NULL},
    {"lift", (PyCFunction)queues_lift, METH_VARARGS, NULL},
    {"put_back", (PyCFunction)queues_put_back, METH_VARARGS, NULL},
    {"close", (PyCFunction)queues_close, METH_O, NULL},
    {"remove", (PyCFunction)queues_remove, METH_O, NULL},
    {"clear", (PyCFunction)queues_clear, METH_NOARGS, NULL},
    {"__copy__", (PyCFunction)queues_copy, METH_NOARGS, NULL},
    {"__deepcopy__", (PyCFunction)queues_copy, METH_O, NULL},
    {NULL},
};

static PySequenceMethods sequence = {
    .sq_length = (lenfunc)table_len,
    .sq_contains = (objobjproc)table_contains,
};

PyTypeObject QueuesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvloft._table.Queues",
    .tp_basicsize = sizeof(Queues),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = queues_new,
    .tp_dealloc = (destructor)table_dealloc,
    .tp_methods = methods,
    .tp_as_sequence = &sequence,
};
