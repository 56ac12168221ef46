/* `Ghosts`: hashes of evicted blocks by the segment they were in, in the order of the latest eviction.
 *
 * The hashes lie in their segment, the last block of the chain first, for that leaves first. Hashing keys may run Python code;
 * so all are hashed before anything changes. */
#include "segments.h"

#include <structmember.h>

struct Ghosts {
    PyObject_HEAD
    PyObject *at; /* by the hash of the first evicted block: the segment */
    AgedRun *oldest, *newest;
    long long blocks;
};

static inline int64_t
first_of(const AgedRun *segment)
{
    return segment->hashes[segment->evicted - 1];
}

/* The order; it has a reference to each segment. */

static void
unlink_run(Ghosts *self, AgedRun *segment)
{
    *(segment->older ? &segment->older->newer : &self->oldest) = segment->newer;
    *(segment->newer ? &segment->newer->older : &self->newest) = segment->older;
    segment->older = segment->newer = NULL;
    segment->ghosts = NULL;
}

static void
link_run(Ghosts *self, AgedRun *segment)
{
    segment->ghosts = self;
    segment->older = self->newest;
    *(self->newest ? &self->newest->newer : &self->oldest) = segment;
    self->newest = segment;
}

static void
forget_run(Ghosts *self, AgedRun *segment)
{
    PyMem_Free(segment->hashes);
    segment->hashes = NULL;
    segment->evicted = segment->room = 0;
    unlink_run(self, segment);
    Py_DECREF(segment);
}

/* Changing. A segment has the right to its first hash, or has lost it to one that came later. */

static int
claim(Ghosts *self, AgedRun *segment, int64_t first)
{
    PyObject *hash = PyLong_FromLongLong(first);
    int claimed = hash ? PyDict_SetItem(self->at, hash, (PyObject *)segment) : -1;
    Py_XDECREF(hash);
    return claimed;
}

static int
disclaim(Ghosts *self, AgedRun *segment, int64_t first)
{
    PyObject *hash = PyLong_FromLongLong(first);
    PyObject *holder = hash ? PyDict_GetItemWithError(self->at, hash) : NULL;
    int done = holder == (PyObject *)segment ? PyDict_DelItem(self->at, hash) : PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(hash);
    return done;
}

/* Another block is the first now; or none, if it has none. */
static int
change_first(Ghosts *self, AgedRun *segment, bool has, int64_t first)
{
    if (has && claim(self, segment, first) < 0)
        return -1;
    if (segment->evicted && !(has && first == first_of(segment)))
        return disclaim(self, segment, first_of(segment));
    return 0;
}

static int
make_room(AgedRun *segment, Py_ssize_t more)
{
    size_t room = (size_t)segment->evicted + (size_t)more;
    if (room <= segment->room)
        return 0;
    int64_t *hashes = room < (size_t)MOST ? PyMem_Realloc(segment->hashes, room * sizeof(*hashes)) : NULL;
    if (!hashes) {
        PyErr_NoMemory();
        return -1;
    }
    segment->hashes = hashes;
    segment->room = (uint32_t)room;
    return 0;
}

static AgedRun *
own(Ghosts *self, PyObject *given)
{
    AgedRun *segment = as_aged_run(given);
    if (segment && segment->evicted && segment->ghosts != self) {
        PyErr_SetString(PyExc_ValueError, "the segment is among other ghosts");
        return NULL;
    }
    return segment;
}

/* Forget the first blocks of a segment. */
static int
drop(Ghosts *self, AgedRun *segment, uint32_t n)
{
    uint32_t left = segment->evicted - n;
    if (!n)
        return 0;
    if (change_first(self, segment, left, left ? segment->hashes[left - 1] : 0) < 0)
        return -1;
    segment->evicted = left;
    self->blocks -= n;
    if (!left)
        forget_run(self, segment);
    return 0;
}

/* Hashes of keys, the last of their chain first. The caller frees them. */
static int64_t *
hash_all(PyObject *keys, bool last_first)
{
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    int64_t *hashes = PyMem_Malloc(((size_t)count + 1) * sizeof(*hashes));
    if (!hashes)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; hashes && i < count; i++) {
        Py_ssize_t at = last_first ? i : count - 1 - i;
        hashes[at] = PyObject_Hash(PyTuple_GET_ITEM(keys, i));
        if (hashes[at] == -1) {
            PyMem_Free(hashes);
            return NULL;
        }
    }
    return hashes;
}

static int
add(Ghosts *self, AgedRun *segment, const int64_t *hashes, Py_ssize_t count, bool before)
{
    if (!count)
        return 0;
    bool first = before || !segment->evicted;
    if (make_room(segment, count) < 0 || change_first(self, segment, true, first ? hashes[count - 1] : first_of(segment)) < 0)
        return -1;
    if (!before)
        memmove(segment->hashes + count, segment->hashes, segment->evicted * sizeof(*hashes));
    memcpy(segment->hashes + (before ? segment->evicted : 0), hashes, (size_t)count * sizeof(*hashes));
    segment->evicted += (uint32_t)count;
    self->blocks += count;
    if (!segment->ghosts)
        link_run(self, (AgedRun *)Py_NewRef(segment));
    return 0;
}

/* Calls. */

static PyObject *
add_keys(Ghosts *self, PyObject *const *args, Py_ssize_t count, bool before)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "give a segment and keys");
    PyObject *keys = PySequence_Tuple(args[1]);
    int64_t *hashes = keys ? hash_all(keys, before) : NULL;
    AgedRun *segment = hashes ? own(self, args[0]) : NULL;
    int added = segment ? add(self, segment, hashes, PyTuple_GET_SIZE(keys), before) : -1;
    if (!added && before && PyTuple_GET_SIZE(keys) && segment != self->newest) {
        unlink_run(self, segment);
        link_run(self, segment);
    }
    PyMem_Free(hashes);
    Py_XDECREF(keys);
    return added < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
ghosts_evict(Ghosts *self, PyObject *const *args, Py_ssize_t count)
{
    return add_keys(self, args, count, true);
}

static PyObject *
ghosts_extend(Ghosts *self, PyObject *const *args, Py_ssize_t count)
{
    return add_keys(self, args, count, false);
}

static PyObject *
ghosts_drop(Ghosts *self, PyObject *args)
{
    PyObject *given;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "On", &given, &n))
        return NULL;
    AgedRun *segment = own(self, given);
    if (segment && n < 0)
        return PyErr_Format(PyExc_ValueError, "%zd evicted blocks", n);
    return segment && drop(self, segment, (uint32_t)Py_MIN(n, segment->evicted)) == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
ghosts_part(Ghosts *self, PyObject *args)
{
    PyObject *given, *other;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "OnO", &given, &n, &other))
        return NULL;
    AgedRun *segment = own(self, given), *head = segment ? own(self, other) : NULL;
    if (!head)
        return NULL;
    if (n < 1 || n > segment->evicted || head->evicted)
        return PyErr_Format(PyExc_ValueError, "%zd of %u evicted blocks, to a segment with %u", n, segment->evicted,
                            head->evicted);
    int64_t *hashes = PyMem_Malloc((size_t)n * sizeof(*hashes));
    if (!hashes)
        return PyErr_NoMemory();
    memcpy(hashes, segment->hashes + segment->evicted - n, (size_t)n * sizeof(*hashes));
    bool parted = drop(self, segment, (uint32_t)n) == 0 && add(self, head, hashes, n, true) == 0;
    PyMem_Free(hashes);
    return parted ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
ghosts_find(Ghosts *self, PyObject *keys)
{
    PyObject *first = PySequence_GetItem(keys, 0);
    Py_hash_t hash = first ? PyObject_Hash(first) : -1;
    Py_XDECREF(first);
    PyObject *number = hash == -1 ? NULL : PyLong_FromSsize_t(hash);
    PyObject *found = number ? PyDict_GetItemWithError(self->at, number) : NULL;
    Py_XDECREF(number);
    if (!found)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    AgedRun *segment = (AgedRun *)Py_NewRef(found);
    Py_ssize_t matched = 0, count = PySequence_Size(keys);
    while (matched < segment->evicted && hash == segment->hashes[segment->evicted - 1 - matched] && ++matched < count) {
        PyObject *key = PySequence_GetItem(keys, matched);
        hash = key ? PyObject_Hash(key) : -1;
        Py_XDECREF(key);
    }
    PyObject *answer = PyErr_Occurred() ? NULL : Py_BuildValue("(On)", segment, matched);
    Py_DECREF(segment);
    return answer;
}

static PyObject *
ghosts_oldest(Ghosts *self, PyObject *Py_UNUSED(none))
{
    return Py_NewRef(self->oldest ? (PyObject *)self->oldest : Py_None);
}

static PyObject *
ghosts_segments(Ghosts *self, PyObject *Py_UNUSED(none))
{
    PyObject *segments = PyList_New(0);
    for (AgedRun *segment = self->oldest; segments && segment; segment = segment->newer)
        if (PyList_Append(segments, (PyObject *)segment) < 0)
            Py_CLEAR(segments);
    return segments;
}

/* The type. */

static PyObject *
ghosts_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *known[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, names, "", known))
        return NULL;
    Ghosts *self = (Ghosts *)type->tp_alloc(type, 0);
    if (self && !(self->at = PyDict_New()))
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* With copies of the segments, which get what the copied ones have. */
static PyObject *
ghosts_copy(Ghosts *self, PyObject *memo)
{
    Ghosts *copy = (Ghosts *)Py_TYPE(self)->tp_alloc(Py_TYPE(self), 0);
    PyObject *segments = copy ? ghosts_segments(self, NULL) : NULL;
    PyObject *copies = segments ? deep_copy(segments, memo) : NULL;
    bool made = copies && PyList_CheckExact(copies) && PyList_GET_SIZE(copies) == PyList_GET_SIZE(segments) &&
                (copy->at = deep_copy(self->at, memo)) && PyDict_CheckExact(copy->at);
    for (Py_ssize_t i = 0; made && i < PyList_GET_SIZE(copies); i++) {
        AgedRun *from = (AgedRun *)PyList_GET_ITEM(segments, i), *to = as_aged_run(PyList_GET_ITEM(copies, i));
        made = to && !to->evicted && make_room(to, from->evicted) == 0;
        if (!made)
            break;
        memcpy(to->hashes, from->hashes, from->evicted * sizeof(*to->hashes));
        to->evicted = from->evicted;
        copy->blocks += to->evicted;
        link_run(copy, (AgedRun *)Py_NewRef(to));
    }
    Py_XDECREF(segments);
    Py_XDECREF(copies);
    if (!made)
        Py_CLEAR(copy);
    return (PyObject *)copy;
}

static void
ghosts_dealloc(Ghosts *self)
{
    while (self->oldest)
        forget_run(self, self->oldest);
    Py_XDECREF(self->at);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef methods[] = {
    {"find", (PyCFunction)ghosts_find, METH_O, NULL},
    {"evict", (PyCFunction)(void (*)(void))ghosts_evict, METH_FASTCALL, NULL},
    {"extend", (PyCFunction)(void (*)(void))ghosts_extend, METH_FASTCALL, NULL},
    {"drop", (PyCFunction)ghosts_drop, METH_VARARGS, NULL},
    {"part", (PyCFunction)ghosts_part, METH_VARARGS, NULL},
    {"oldest", (PyCFunction)ghosts_oldest, METH_NOARGS, NULL},
    {"segments", (PyCFunction)ghosts_segments, METH_NOARGS, NULL},
    {"__deepcopy__", (PyCFunction)ghosts_copy, METH_O, NULL},
    {NULL},
};

static PyMemberDef members[] = {
    {"blocks", T_LONGLONG, offsetof(Ghosts, blocks), READONLY, NULL},
    {NULL},
};

PyTypeObject GhostsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvloft._table.Ghosts",
    .tp_basicsize = sizeof(Ghosts),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = ghosts_new,
    .tp_dealloc = (destructor)ghosts_dealloc,
    .tp_methods = methods,
    .tp_members = members,
};
