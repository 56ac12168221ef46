/* `Uses`: uses of segments in their order, to see which segments become too old for a bin without being used again. What is
 * seen is counted by class and bin until somebody takes the counts. */
#include "segments.h"

typedef struct {
    long long time;
    uint32_t blocks; /* 0 if the segment was used again since, or is gone */
    int kind;
} Use;

typedef struct {
    PyObject_HEAD
    Ages *ages;
    Py_ssize_t *seen; /* [bins]; by bin: the uses that have left it, the last bin's are never left */
    Use *uses;
    Py_ssize_t count, room;
    long long base; /* uses before the first in the array; all are older than any bin */
    int64_t *counts; /* [COUNTS, classes, bins] */
} Uses;

enum { REUSED, SURVIVED, SEGMENTS, COUNTS }; /* blocks, blocks, and how many segments these were */

#define FEW 4096

/* Where a use is in the array, -1 if it is too old or there is none. */
static Py_ssize_t
place_of(const Uses *self, const AgedRun *segment)
{
    return segment->use < self->base || segment->use - self->base >= self->count ? -1 : (Py_ssize_t)(segment->use - self->base);
}

static int
describe(const Uses *self, AgedRun *segment, Use *use)
{
    Py_ssize_t resident = resident_blocks(&segment->run);
    if (resident < 0)
        return -1;
    if (segment->kind < 0 || segment->kind >= self->ages->classes || resident > MOST) {
        PyErr_Format(PyExc_ValueError, "%zd blocks, class %d of %d", resident, segment->kind, self->ages->classes);
        return -1;
    }
    use->kind = segment->kind;
    use->blocks = (uint32_t)resident + segment->evicted;
    return 0;
}

static int
begin(Uses *self, AgedRun *segment)
{
    Use use = {.time = self->ages->clock};
    if (describe(self, segment, &use) < 0)
        return -1;
    if (self->count == self->room) {
        Use *uses = doubled(self->uses, &self->room, sizeof(*uses));
        if (!uses)
            return -1;
        self->uses = uses;
    }
    segment->last = use.time;
    segment->use = self->base + self->count;
    self->uses[self->count++] = use;
    return ages_settle(self->ages, segment);
}

static PyObject *
uses_begin(Uses *self, PyObject *given)
{
    AgedRun *segment = as_aged_run(given);
    return segment && begin(self, segment) == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
uses_change(Uses *self, PyObject *given)
{
    AgedRun *segment = as_aged_run(given);
    Py_ssize_t at = segment ? place_of(self, segment) : -1;
    if (at >= 0 && describe(self, segment, &self->uses[at]) < 0)
        segment = NULL;
    return segment ? Py_NewRef(Py_None) : NULL;
}

static inline void
count(Uses *self, int what, int kind, int bin, long long blocks)
{
    int plane = self->ages->classes * self->ages->bins.bins, at = kind * self->ages->bins.bins + bin;
    self->counts[what * plane + at] += blocks;
    self->counts[SEGMENTS * plane + at]++;
}

static PyObject *
uses_reuse(Uses *self, PyObject *args)
{
    int kind, bin, blocks;
    if (!PyArg_ParseTuple(args, "iii", &kind, &bin, &blocks))
        return NULL;
    if (kind < 0 || kind >= self->ages->classes || bin < 0 || bin >= self->ages->bins.bins)
        return PyErr_Format(PyExc_ValueError, "class %d of %d, bin %d of %d", kind, self->ages->classes, bin, self->ages->bins.bins);
    count(self, REUSED, kind, bin, blocks);
    Py_RETURN_NONE;
}

static int
end(Uses *self, AgedRun *segment, bool reused)
{
    Use use;
    if (describe(self, segment, &use) < 0)
        return -1;
    int bin = bin_at(self->ages, segment->last);
    if (reused)
        count(self, REUSED, use.kind, bin, use.blocks);
    Py_ssize_t at = place_of(self, segment);
    segment->use = -1;
    if (at >= 0) {
        Use *begun = &self->uses[at];
        for (; bin > 0 && self->seen[bin - 1] <= at; bin--)
            count(self, SURVIVED, begun->kind, bin - 1, begun->blocks);
        begun->blocks = 0;
    }
    return 0;
}

static PyObject *
uses_end(Uses *self, PyObject *given)
{
    AgedRun *segment = as_aged_run(given);
    return segment && end(self, segment, false) == 0 ? Py_NewRef(Py_None) : NULL;
}

/* A segment is used by a request, which may have stored it itself; if not, it was read once more. */
static int
use_again(Uses *self, AgedRun *segment, bool stored, PyObject *kinds)
{
    if (end(self, segment, !stored) < 0)
        return -1;
    if (!stored) {
        PyObject *parent = segment->run.parent;
        if (!segment->reads && parent && PyObject_TypeCheck(parent, &AgedRunType))
            ((AgedRun *)parent)->branches_reused++;
        Py_ssize_t reads = ++segment->reads, most = PyTuple_GET_SIZE(kinds) - 1;
        PyObject *kind = reads < 0 || most < 0 ? NULL : PyTuple_GET_ITEM(kinds, Py_MIN(reads, most));
        if (!kind) {
            PyErr_Format(PyExc_ValueError, "%zd classes by reads, %zd reads", most + 1, reads);
            return -1;
        }
        segment->kind = (int)PyLong_AsLong(kind);
        if (PyErr_Occurred())
            return -1;
    }
    PyObject *owner = segment->run.owner;
    segment->run.owner = Py_NewRef(Py_None);
    int begun = begin(self, segment);
    Py_XDECREF(owner);
    return begun;
}

static PyObject *
uses_again(Uses *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyTuple_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "give segments, stored keys, and a tuple of classes");
    PyObject *path = PySequence_Tuple(args[0]);
    if (!path)
        return NULL;
    Py_ssize_t hits = 0, asked = 0, at = 0;
    for (; at < PyTuple_GET_SIZE(path); at++) {
        AgedRun *segment = as_aged_run(PyTuple_GET_ITEM(path, at));
        Py_ssize_t blocks = segment ? resident_blocks(&segment->run) : -1;
        int stored = blocks < 0 ? -1 : !segment->stamp;
        if (blocks > 0) {
            PyObject *first = Py_NewRef(PyTuple_GET_ITEM(segment->run.keys, 0)); /* asking may run code */
            stored = PySequence_Contains(args[1], first);
            Py_DECREF(first);
        }
        if (stored < 0 || use_again(self, segment, stored, args[2]) < 0)
            break;
        hits += stored ? 0 : blocks;
        asked += blocks + segment->evicted;
    }
    bool done = at == PyTuple_GET_SIZE(path);
    Py_DECREF(path);
    return done ? Py_BuildValue("(nn)", hits, asked) : NULL;
}

/* The first use from a place on that is younger than a time. */
static Py_ssize_t
first_after(const Uses *self, Py_ssize_t low, long long time)
{
    Py_ssize_t high = self->count;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (time < self->uses[middle].time)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static PyObject *
uses_look(Uses *self, PyObject *Py_UNUSED(none))
{
    long long clock = self->ages->clock;
    for (int bin = 0; bin < self->ages->bins.bins - 1; bin++) {
        Py_ssize_t end = clock >= self->ages->bins.ends[bin] ? first_after(self, self->seen[bin], clock - self->ages->bins.ends[bin]) : 0;
        for (Py_ssize_t at = self->seen[bin]; at < end; at++)
            if (self->uses[at].blocks)
                count(self, SURVIVED, self->uses[at].kind, bin, self->uses[at].blocks);
        self->seen[bin] = Py_MAX(self->seen[bin], end);
    }
    Py_ssize_t old = self->ages->bins.bins > 1 ? self->seen[self->ages->bins.bins - 2] : 0;
    if (old > FEW && 2 * old > self->count) {
        self->count -= old;
        memmove(self->uses, self->uses + old, (size_t)self->count * sizeof(*self->uses));
        self->base += old;
        for (int bin = 0; bin < self->ages->bins.bins - 1; bin++)
            self->seen[bin] -= old;
    }
    Py_RETURN_NONE;
}

static inline size_t
counts_size(const Uses *self)
{
    return COUNTS * (size_t)(self->ages->classes * self->ages->bins.bins) * sizeof(*self->counts);
}

static PyObject *
uses_take(Uses *self, PyObject *Py_UNUSED(none))
{
    PyObject *counts = PyBytes_FromStringAndSize((char *)self->counts, (Py_ssize_t)counts_size(self));
    if (counts)
        memset(self->counts, 0, counts_size(self));
    return counts;
}

/* The type. */

static Uses *
make(PyTypeObject *type, Ages *ages, Py_ssize_t room)
{
    Uses *self = (Uses *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->ages = (Ages *)Py_NewRef(ages);
    self->room = room;
    self->seen = PyMem_Calloc((size_t)ages->bins.bins, sizeof(*self->seen));
    self->uses = PyMem_Calloc((size_t)room, sizeof(*self->uses));
    self->counts = PyMem_Calloc(1, counts_size(self));
    if (self->seen && self->uses && self->counts)
        return self;
    Py_DECREF(self);
    PyErr_NoMemory();
    return NULL;
}

static PyObject *
uses_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *known[] = {"ages", NULL};
    PyObject *ages;
    if (!PyArg_ParseTupleAndKeywords(args, names, "O!", known, &AgesType, &ages))
        return NULL;
    return (PyObject *)make(type, (Ages *)ages, FEW);
}

/* With a copy of the ages. */
static PyObject *
uses_copy(Uses *self, PyObject *memo)
{
    PyObject *ages = deep_copy((PyObject *)self->ages, memo);
    Uses *copy = ages && PyObject_TypeCheck(ages, &AgesType) ? make(Py_TYPE(self), (Ages *)ages, self->room) : NULL;
    if (copy) {
        copy->count = self->count;
        copy->base = self->base;
        memcpy(copy->seen, self->seen, (size_t)self->ages->bins.bins * sizeof(*self->seen));
        memcpy(copy->uses, self->uses, (size_t)self->count * sizeof(*self->uses));
        memcpy(copy->counts, self->counts, counts_size(self));
    }
    Py_XDECREF(ages);
    return (PyObject *)copy;
}

static void
uses_dealloc(Uses *self)
{
    PyMem_Free(self->seen);
    PyMem_Free(self->uses);
    PyMem_Free(self->counts);
    Py_XDECREF(self->ages);
    Py_TYPE(self)->tp_free(self);
}

static Py_ssize_t
uses_len(Uses *self)
{
    return self->count;
}

static PyMethodDef methods[] = {
    {"begin", (PyCFunction)uses_begin, METH_O, NULL},
    {"change", (PyCFunction)uses_change, METH_O, NULL},
    {"end", (PyCFunction)uses_end, METH_O, NULL},
    {"again", (PyCFunction)(void (*)(void))uses_again, METH_FASTCALL, NULL},
    {"reuse", (PyCFunction)uses_reuse, METH_VARARGS, NULL},
    {"look", (PyCFunction)uses_look, METH_NOARGS, NULL},
    {"take", (PyCFunction)uses_take, METH_NOARGS, NULL},
    {"__deepcopy__", (PyCFunction)uses_copy, METH_O, NULL},
    {NULL},
};

static PySequenceMethods sequence = {
    .sq_length = (lenfunc)uses_len,
};

PyTypeObject UsesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvloft._table.Uses",
    .tp_basicsize = sizeof(Uses),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = uses_new,
    .tp_dealloc = (destructor)uses_dealloc,
    .tp_methods = methods,
    .tp_as_sequence = &sequence,
};
