/* `Ages`: leaves by class and stage of age, each class and stage a binary heap with the leaf that was used longest ago first.
 *
 * An entry keeps the time by which it was placed, for a segment's own may change at any time; then, or when the segment is no
 * leaf any more, the entry stands for nothing, and is dropped when it comes up or the segment is put again. What is first in
 * each heap is looked at once it may have become too old for its bin, and when another has taken its place. */
#include "segments.h"

#include <structmember.h>

#define NEVER LLONG_MAX
#define AT_ONCE LLONG_MIN

typedef struct {
    long long last, number;
    AgedRun *segment;
} Leaf;

struct Queue {
    Leaf *leaves;
    uint32_t count, room;
    double lowest;   /* the index of the first leaf, */
    long long until; /* and when that has to be looked up again */
};

/* Heaps. */

static inline bool
before(const Leaf *one, const Leaf *other)
{
    return one->last != other->last ? one->last < other->last : one->number < other->number;
}

static inline void
set_place(Queue *queue, uint32_t place, Leaf leaf)
{
    (queue->leaves[place] = leaf).segment->place = place;
}

static void
rise(Queue *queue, uint32_t place, Leaf leaf)
{
    for (uint32_t above; place && before(&leaf, &queue->leaves[above = (place - 1) / 2]); place = above)
        set_place(queue, place, queue->leaves[above]);
    set_place(queue, place, leaf);
}

static void
sink(Queue *queue, uint32_t place, Leaf leaf)
{
    for (uint32_t below; (below = 2 * place + 1) < queue->count; place = below) {
        if (below + 1 < queue->count && before(&queue->leaves[below + 1], &queue->leaves[below]))
            below++;
        if (before(&leaf, &queue->leaves[below]))
            break;
        set_place(queue, place, queue->leaves[below]);
    }
    set_place(queue, place, leaf);
}

static int
reserve(Queue *queue)
{
    if (queue->count < queue->room)
        return 0;
    uint32_t room = queue->room ? 2 * queue->room : 16;
    Leaf *leaves = room < (uint32_t)MOST ? PyMem_Realloc(queue->leaves, room * sizeof(*leaves)) : NULL;
    if (!leaves) {
        PyErr_NoMemory();
        return -1;
    }
    queue->leaves = leaves;
    queue->room = room;
    return 0;
}

/* The first of a queue is another one. */
static void
look_again(Ages *self, Queue *queue)
{
    queue->until = self->until = AT_ONCE;
}

/* There is room, which the caller has seen to; the queue has a reference from now on. */
static void
insert(Ages *self, uint32_t number, Leaf leaf)
{
    Queue *queue = &self->queues[number];
    leaf.segment->ages = self;
    leaf.segment->queue = number;
    rise(queue, queue->count++, leaf);
    if (!leaf.segment->place)
        look_again(self, queue);
}

/* Take a segment out of its queue. The reference is the caller's. */
static void
extract(Ages *self, AgedRun *segment)
{
    Queue *queue = &self->queues[segment->queue];
    uint32_t place = segment->place;
    Leaf moved = queue->leaves[--queue->count];
    segment->ages = NULL;
    if (place < queue->count) {
        if (place && before(&moved, &queue->leaves[(place - 1) / 2]))
            rise(queue, place, moved);
        else
            sink(queue, place, moved);
    }
    if (!place)
        look_again(self, queue);
}

/* Leaves. */

/* Whether an entry stands for a leaf. */
static bool
is_leaf(const Ages *self, const Leaf *leaf)
{
    const AgedRun *segment = leaf->segment;
    return !segment->run.live && segment->last == leaf->last && segment->run.keys && PyTuple_Check(segment->run.keys) &&
           PyTuple_GET_SIZE(segment->run.keys) && segment->kind == (int)segment->queue / self->stages;
}

/* Bring the first of a queue up to date; those too old for the stage move on to the next. */
static int
look(Ages *self, uint32_t number)
{
    Queue *queue = &self->queues[number];
    int kind = (int)number / self->stages;
    while (queue->count) {
        Leaf first = queue->leaves[0];
        int bin = bin_at(self, first.last), stage = self->stage_of[bin];
        if (stage == (int)number % self->stages) {
            queue->lowest = self->rank[kind * self->bins.bins + bin];
            bool ends = bin < self->bins.bins - 1 && self->bins.ends[bin] < NEVER - first.last;
            queue->until = ends ? first.last + self->bins.ends[bin] : NEVER;
            return 0;
        }
        uint32_t next = (uint32_t)(kind * self->stages + stage);
        bool leaf = is_leaf(self, &first);
        if (leaf && reserve(&self->queues[next]) < 0)
            return -1;
        extract(self, first.segment);
        if (leaf)
            insert(self, next, first);
        else
            Py_DECREF(first.segment);
    }
    queue->until = NEVER;
    return 0;
}

/* What is too old for its stage moves on to a later queue, so one pass is enough. */
static int
look_where_due(Ages *self)
{
    long long until = NEVER;
    if (self->until > self->clock)
        return 0;
    for (uint32_t number = 0; number < (uint32_t)(self->classes * self->stages); number++) {
        if (self->queues[number].until <= self->clock && look(self, number) < 0)
            return -1;
        until = Py_MIN(until, self->queues[number].until);
    }
    self->until = until;
    return 0;
}

/* Take the first leaf, used before a time, of the queue that comes first; NULL without an error if there is none. */
static AgedRun *
take(Ages *self, bool (*comes_first)(const Queue *one, const Queue *other), long long time)
{
    while (true) {
        Queue *best = NULL;
        for (Queue *queue = self->queues; queue < self->queues + self->classes * self->stages; queue++)
            if (queue->count && queue->leaves[0].last < time && (!best || comes_first(queue, best)))
                best = queue;
        if (!best)
            return NULL;
        Leaf first = best->leaves[0];
        bool leaf = is_leaf(self, &first);
        extract(self, first.segment);
        if (leaf)
            return first.segment;
        Py_DECREF(first.segment);
        if (look_where_due(self) < 0)
            return NULL;
    }
}

static bool
is_lower(const Queue *one, const Queue *other)
{
    return one->lowest < other->lowest;
}

static bool
is_older(const Queue *one, const Queue *other)
{
    return before(one->leaves, other->leaves);
}

static PyObject *
answer(AgedRun *taken)
{
    return taken ? (PyObject *)taken : PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *
ages_take(Ages *self, PyObject *Py_UNUSED(none))
{
    return look_where_due(self) < 0 ? NULL : answer(take(self, is_lower, NEVER));
}

static PyObject *
ages_take_before(Ages *self, PyObject *given)
{
    long long time = PyLong_AsLongLong(given);
    if ((time == -1 && PyErr_Occurred()) || look_where_due(self) < 0)
        return NULL;
    return answer(take(self, is_lower, time));
}

static PyObject *
ages_take_oldest(Ages *self, PyObject *Py_UNUSED(none))
{
    return answer(take(self, is_older, NEVER));
}

int
ages_settle(Ages *self, AgedRun *segment)
{
    Py_ssize_t blocks = resident_blocks(&segment->run);
    if (blocks < 0)
        return -1;
    if (segment->ages && segment->ages != self) {
        PyErr_SetString(PyExc_ValueError, "the segment is among other leaves");
        return -1;
    }
    bool leaf = blocks && !segment->run.live;
    uint32_t queue = 0;
    if (leaf) {
        if (segment->kind < 0 || segment->kind >= self->classes || segment->last < 0 || segment->last > self->clock) {
            PyErr_Format(PyExc_ValueError, "class %d of %d, used at %lld of %lld", segment->kind, self->classes,
                         segment->last, self->clock);
            return -1;
        }
        queue = (uint32_t)(segment->kind * self->stages + self->stage_of[bin_at(self, segment->last)]);
        if (segment->ages && segment->queue == queue && self->queues[queue].leaves[segment->place].last == segment->last)
            return 0;
        if (reserve(&self->queues[queue]) < 0)
            return -1;
    }
    bool was_in = segment->ages;
    if (was_in)
        extract(self, segment);
    else if (leaf)
        Py_INCREF(segment);
    if (leaf)
        insert(self, queue, (Leaf){segment->last, segment->run.number, segment});
    else if (was_in)
        Py_DECREF(segment);
    return 0;
}

static PyObject *
ages_put(Ages *self, PyObject *given)
{
    AgedRun *segment = as_aged_run(given);
    return segment && ages_settle(self, segment) == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
ages_bin(Ages *self, PyObject *given)
{
    AgedRun *segment = as_aged_run(given);
    return segment ? PyLong_FromLong(bin_at(self, segment->last)) : NULL;
}

static PyObject *
ages_index(Ages *self, PyObject *given)
{
    AgedRun *segment = as_aged_run(given);
    if (segment && (segment->kind < 0 || segment->kind >= self->classes))
        return PyErr_Format(PyExc_ValueError, "class %d of %d", segment->kind, self->classes);
    int at = segment ? segment->kind * self->bins.bins + bin_at(self, segment->last) : 0;
    return segment ? PyFloat_FromDouble(self->index[at]) : NULL;
}

static PyObject *
ages_rank(Ages *self, PyObject *given)
{
    Py_buffer view;
    if (PyObject_GetBuffer(given, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    int bins = self->bins.bins;
    bool fits = view.ndim == 2 && view.shape[0] == self->classes && view.shape[1] == bins && view.format &&
                strcmp(view.format, "d") == 0;
    for (int i = 0; fits && i < self->classes * bins; i++) {
        int bin = i % bins;
        double index = ((double *)view.buf)[i];
        bool begins = !bin || self->stage_of[bin] != self->stage_of[bin - 1];
        self->index[i] = index;
        self->rank[i] = begins || index < self->rank[i - 1] ? index : self->rank[i - 1];
    }
    PyBuffer_Release(&view);
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "give an index of float64, [%d, %d]", self->classes, bins);
        return NULL;
    }
    for (int i = 0; i < self->classes * self->stages; i++)
        look_again(self, &self->queues[i]);
    Py_RETURN_NONE;
}

static PyObject *
ages_tick(Ages *self, PyObject *Py_UNUSED(none))
{
    self->clock++;
    Py_RETURN_NONE;
}

static PyObject *
ages_leaves(Ages *self, PyObject *Py_UNUSED(none))
{
    PyObject *leaves = PyList_New(0);
    for (Queue *queue = self->queues; leaves && queue < self->queues + self->classes * self->stages; queue++)
        for (uint32_t place = 0; leaves && place < queue->count; place++)
            if (is_leaf(self, &queue->leaves[place]) && PyList_Append(leaves, (PyObject *)queue->leaves[place].segment) < 0)
                Py_CLEAR(leaves);
    return leaves;
}

/* Make its arrays, when it knows its bins and how many classes and stages there are. */
static int
allocate(Ages *self)
{
    self->until = AT_ONCE;
    self->stage_of = PyMem_Calloc((size_t)self->bins.bins, sizeof(*self->stage_of));
    self->index = PyMem_Calloc((size_t)(self->classes * self->bins.bins), sizeof(*self->index));
    self->rank = PyMem_Calloc((size_t)(self->classes * self->bins.bins), sizeof(*self->rank));
    self->queues = PyMem_Calloc((size_t)(self->classes * self->stages), sizeof(*self->queues));
    if (self->stage_of && self->index && self->rank && self->queues)
        return 0;
    PyErr_NoMemory();
    return -1;
}

/* Bins of each stage: the first begins at bin 0, the others as given. */
static int
set_stages(Ages *self, PyObject *begins)
{
    long from = 0;
    for (int stage = 0; stage < self->stages; stage++) {
        long next = stage < PyTuple_GET_SIZE(begins) ? PyLong_AsLong(PyTuple_GET_ITEM(begins, stage)) : self->bins.bins;
        if (next == -1 && PyErr_Occurred())
            return -1;
        if (next <= from || next > self->bins.bins - (stage < self->stages - 1)) {
            PyErr_Format(PyExc_ValueError, "stages after the first begin at ascending bins up to %d", self->bins.bins - 1);
            return -1;
        }
        while (from < next)
            self->stage_of[from++] = stage;
    }
    return 0;
}

static int
copy_shape(Ages *self, const Ages *from)
{
    self->clock = from->clock;
    self->classes = from->classes;
    self->stages = from->stages;
    self->bins.bins = from->bins.bins;
    self->bins.ends = PyMem_Calloc((size_t)from->bins.bins, sizeof(*self->bins.ends));
    if (!self->bins.ends)
        PyErr_NoMemory();
    if (!self->bins.ends || allocate(self) < 0)
        return -1;
    memcpy(self->bins.ends, from->bins.ends, (size_t)self->bins.bins * sizeof(*self->bins.ends));
    memcpy(self->stage_of, from->stage_of, (size_t)self->bins.bins * sizeof(*self->stage_of));
    memcpy(self->index, from->index, (size_t)(self->classes * self->bins.bins) * sizeof(*self->index));
    memcpy(self->rank, from->rank, (size_t)(self->classes * self->bins.bins) * sizeof(*self->rank));
    return 0;
}

/* With copies of the leaves. */
static PyObject *
ages_copy(Ages *self, PyObject *memo)
{
    Ages *copy = (Ages *)Py_TYPE(self)->tp_alloc(Py_TYPE(self), 0);
    PyObject *leaves = copy ? ages_leaves(self, NULL) : NULL;
    PyObject *copies = leaves ? deep_copy(leaves, memo) : NULL;
    bool made = copies && PyList_CheckExact(copies) && copy_shape(copy, self) == 0;
    for (Py_ssize_t i = 0; made && i < PyList_GET_SIZE(copies); i++) {
        AgedRun *segment = as_aged_run(PyList_GET_ITEM(copies, i));
        made = segment && ages_settle(copy, segment) == 0;
    }
    Py_XDECREF(leaves);
    Py_XDECREF(copies);
    if (!made)
        Py_CLEAR(copy);
    return (PyObject *)copy;
}

/* The type. */

/* Ascending and positive, or ValueError. */
static int
set_bins(Bins *bins, PyObject *given)
{
    PyObject *edges = PySequence_Tuple(given);
    Py_ssize_t count = edges ? PyTuple_GET_SIZE(edges) : 0;
    if (!edges || count > 126) {
        Py_XDECREF(edges);
        if (edges)
            PyErr_SetString(PyExc_ValueError, "there are 127 bins at most");
        return -1;
    }
    bins->bins = (int)count + 1;
    bins->ends = PyMem_Calloc((size_t)count + 1, sizeof(*bins->ends));
    if (!bins->ends)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; bins->ends && !PyErr_Occurred() && i < count; i++) {
        bins->ends[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(edges, i));
        if (!PyErr_Occurred() && bins->ends[i] <= (i ? bins->ends[i - 1] : 0))
            PyErr_SetString(PyExc_ValueError, "ages at which bins end are positive and ascend");
    }
    Py_DECREF(edges);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *
ages_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *known[] = {"classes", "edges", "stages", NULL};
    int classes;
    PyObject *edges, *given;
    if (!PyArg_ParseTupleAndKeywords(args, names, "iOO", known, &classes, &edges, &given))
        return NULL;
    if (classes < 1 || classes > 127)
        return PyErr_Format(PyExc_ValueError, "%d classes; there are 1 to 127", classes);
    PyObject *stages = PySequence_Tuple(given);
    Ages *self = stages ? (Ages *)type->tp_alloc(type, 0) : NULL;
    if (self && set_bins(&self->bins, edges) == 0) {
        self->classes = classes;
        self->stages = 1 + (int)Py_MIN(PyTuple_GET_SIZE(stages), self->bins.bins);
    }
    if (self && (!self->stages || allocate(self) < 0 || set_stages(self, stages) < 0))
        Py_CLEAR(self);
    Py_XDECREF(stages);
    return (PyObject *)self;
}

static void
ages_dealloc(Ages *self)
{
    for (int i = 0; self->queues && i < self->classes * self->stages; i++) {
        Queue *queue = &self->queues[i];
        for (uint32_t place = 0; place < queue->count; place++)
            queue->leaves[place].segment->ages = NULL;
        while (queue->count)
            Py_DECREF(queue->leaves[--queue->count].segment);
        PyMem_Free(queue->leaves);
    }
    PyMem_Free(self->bins.ends);
    PyMem_Free(self->stage_of);
    PyMem_Free(self->index);
    PyMem_Free(self->rank);
    PyMem_Free(self->queues);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef methods[] = {
    {"bin", (PyCFunction)ages_bin, METH_O, NULL},
    {"index", (PyCFunction)ages_index, METH_O, NULL},
    {"put", (PyCFunction)ages_put, METH_O, NULL},
    {"take", (PyCFunction)ages_take, METH_NOARGS, NULL},
    {"take_before", (PyCFunction)ages_take_before, METH_O, NULL},
    {"take_oldest", (PyCFunction)ages_take_oldest, METH_NOARGS, NULL},
    {"rank", (PyCFunction)ages_rank, METH_O, NULL},
    {"leaves", (PyCFunction)ages_leaves, METH_NOARGS, NULL},
    {"tick", (PyCFunction)ages_tick, METH_NOARGS, NULL},
    {"__deepcopy__", (PyCFunction)ages_copy, METH_O, NULL},
    {NULL},
};

static PyMemberDef members[] = {
    {"clock", T_LONGLONG, offsetof(Ages, clock), READONLY, NULL},
    {NULL},
};

PyTypeObject AgesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvloft._table.Ages",
    .tp_basicsize = sizeof(Ages),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = ages_new,
    .tp_dealloc = (destructor)ages_dealloc,
    .tp_methods = methods,
    .tp_members = members,
};
