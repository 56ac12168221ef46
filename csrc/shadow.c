/* `ShadowLRU`: what LRU would have, by use. A use is a chain of blocks that a request used; what has not been used since is the
 * end of it, so two numbers a use say what LRU still has of it, and what we have: both lose its tail first. */
#include "segments.h"

#include <structmember.h>

#define FEW 4096

typedef struct {
    int64_t has, ours;
    int64_t lost, lost_after; /* what we have lost of it since that many uses */
} Use;

typedef struct {
    PyObject_HEAD
    long long capacity;
    long long base;    /* the number of the first use in the array */
    Py_ssize_t oldest; /* the place in it of the oldest use of which LRU has anything */
    Py_ssize_t count, room;
    Use *uses;
    long long total; /* blocks that LRU has */
    long long apart;
    double missed, spared;
} Shadow;

/* The use of a segment that LRU may have something of, or NULL. */
static Use *
use_of(const Shadow *self, const AgedRun *segment)
{
    if (segment->stamp < self->base + self->oldest || segment->stamp >= self->base + self->count)
        return NULL;
    return &self->uses[segment->stamp - self->base];
}

static inline int64_t
apart(const Use *use)
{
    return Py_MAX(0, use->has - use->ours);
}

static void
change(Shadow *self, Use *use, int64_t its, int64_t ours)
{
    self->apart -= apart(use);
    use->has += its;
    use->ours += ours;
    self->apart += apart(use);
}

/* LRU loses its oldest blocks. What we have lost as well since the latest use it does not lose later than we. */
static void
shrink(Shadow *self)
{
    while (self->total > self->capacity && self->oldest < self->count) {
        Use *use = &self->uses[self->oldest];
        int64_t gone = Py_MIN(self->total - self->capacity, use->has), before = self->apart;
        change(self, use, -gone, 0);
        int64_t alike = use->lost_after == self->base + self->count - 2 ? use->lost : 0;
        self->spared += (double)Py_MAX(0, before - self->apart - alike);
        self->total -= gone;
        if (self->total > self->capacity)
            self->oldest++;
    }
}

static int
append(Shadow *self, int64_t has, int64_t ours)
{
    if (self->count == self->room && self->oldest > FEW && 2 * self->oldest > self->count) {
        self->count -= self->oldest;
        memmove(self->uses, self->uses + self->oldest, (size_t)self->count * sizeof(*self->uses));
        self->base += self->oldest;
        self->oldest = 0;
    }
    if (self->count == self->room) {
        Use *uses = doubled(self->uses, &self->room, sizeof(*uses));
        if (!uses)
            return -1;
        self->uses = uses;
    }
    self->uses[self->count++] = (Use){.has = has, .ours = ours};
    return 0;
}

/* Calls. */

static PyObject *
shadow_use(Shadow *self, PyObject *given)
{
    PyObject *path = PySequence_Tuple(given);
    if (!path)
        return NULL;
    int64_t had = 0, asked = 0, ours = 0;
    Py_ssize_t count = PyTuple_GET_SIZE(path);
    for (Py_ssize_t at = 0; at < count; at++) {
        AgedRun *segment = as_aged_run(PyTuple_GET_ITEM(path, at));
        if (!segment || resident_blocks(&segment->run) < 0)
            count = -1;
    }
    if (count < 0 || append(self, 0, 0) < 0)
        goto done;
    for (Py_ssize_t at = 0; at < count; at++) {
        AgedRun *segment = (AgedRun *)PyTuple_GET_ITEM(path, at);
        int64_t kept = PyTuple_GET_SIZE(segment->run.keys), blocks = kept + segment->evicted;
        Use *use = use_of(self, segment);
        asked += blocks;
        ours += kept;
        if (use) {
            int64_t found = Py_MIN(blocks, use->has);
            had += found;
            change(self, use, -found, -kept);
        }
    }
    for (Py_ssize_t at = 0; at < count; at++)
        ((AgedRun *)PyTuple_GET_ITEM(path, at))->stamp = self->base + self->count - 1;
    change(self, &self->uses[self->count - 1], asked, ours);
    self->total += asked - had;
    shrink(self);
done:
    Py_DECREF(path);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(had);
}

/* A segment and a number of blocks. */
static AgedRun *
parse(PyObject *const *args, Py_ssize_t count, long long *blocks)
{
    AgedRun *segment = count == 2 ? as_aged_run(args[0]) : NULL;
    if (count != 2)
        PyErr_SetString(PyExc_TypeError, "give a segment, and a number of blocks");
    *blocks = segment ? PyLong_AsLongLong(args[1]) : -1;
    if (segment && !PyErr_Occurred() && (*blocks < 0 || *blocks > MOST))
        PyErr_Format(PyExc_ValueError, "%lld blocks", *blocks);
    return PyErr_Occurred() ? NULL : segment;
}

static PyObject *
shadow_lose(Shadow *self, PyObject *const *args, Py_ssize_t count)
{
    long long blocks;
    AgedRun *segment = parse(args, count, &blocks);
    Use *use = segment ? use_of(self, segment) : NULL;
    if (use) {
        long long latest = self->base + self->count - 1;
        use->lost = (use->lost_after == latest ? use->lost : 0) + blocks;
        use->lost_after = latest;
        change(self, use, 0, -blocks);
    }
    return segment ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
shadow_lacking(Shadow *self, PyObject *const *args, Py_ssize_t count)
{
    long long blocks;
    AgedRun *segment = parse(args, count, &blocks);
    Use *use = segment ? use_of(self, segment) : NULL;
    return segment ? PyLong_FromLongLong(use ? Py_MAX(0, use->has - use->ours + blocks) : 0) : NULL;
}

static PyObject *
shadow_regain(Shadow *self, PyObject *const *args, Py_ssize_t count)
{
    long long blocks, before = self->apart;
    AgedRun *segment = parse(args, count, &blocks);
    Use *use = segment ? use_of(self, segment) : NULL;
    if (use)
        change(self, use, 0, blocks);
    self->missed += (double)(before - self->apart);
    return segment ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
shadow_forget(Shadow *self, PyObject *args)
{
    PyObject *given;
    long long blocks, ours;
    if (!PyArg_ParseTuple(args, "OLL", &given, &blocks, &ours))
        return NULL;
    AgedRun *segment = as_aged_run(given);
    if (segment && (blocks < 0 || blocks > MOST || ours < 0 || ours > MOST))
        return PyErr_Format(PyExc_ValueError, "%lld blocks, of which we had %lld", blocks, ours);
    Use *use = segment ? use_of(self, segment) : NULL;
    if (use) {
        int64_t gone = Py_MIN(blocks, use->has);
        self->total -= gone;
        change(self, use, -gone, -ours);
    }
    return segment ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
shadow_remember(Shadow *self, PyObject *given)
{
    double blocks = PyFloat_AsDouble(given), known = self->missed + self->spared;
    if (blocks == -1 && PyErr_Occurred())
        return NULL;
    if (known > blocks) {
        self->missed *= blocks / known;
        self->spared *= blocks / known;
    }
    Py_RETURN_NONE;
}

/* The type. */

static Shadow *
make(PyTypeObject *type, long long capacity, Py_ssize_t room)
{
    Shadow *self = (Shadow *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->capacity = capacity;
    self->room = room;
    self->base = 1; /* a segment's 0: it was not used yet */
    self->uses = PyMem_Calloc((size_t)room, sizeof(*self->uses));
    if (!self->uses) {
        Py_CLEAR(self);
        PyErr_NoMemory();
    }
    return self;
}

static PyObject *
shadow_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *known[] = {"capacity", NULL};
    long long capacity;
    if (!PyArg_ParseTupleAndKeywords(args, names, "L", known, &capacity))
        return NULL;
    if (capacity < 0)
        return PyErr_Format(PyExc_ValueError, "a capacity of %lld", capacity);
    return (PyObject *)make(type, capacity, FEW);
}

static PyObject *
shadow_copy(Shadow *self, PyObject *Py_UNUSED(memo))
{
    Shadow *copy = make(Py_TYPE(self), self->capacity, self->room);
    if (copy) {
        copy->base = self->base;
        copy->oldest = self->oldest;
        copy->count = self->count;
        copy->total = self->total;
        copy->apart = self->apart;
        copy->missed = self->missed;
        copy->spared = self->spared;
        memcpy(copy->uses, self->uses, (size_t)self->count * sizeof(*self->uses));
    }
    return (PyObject *)copy;
}

static void
shadow_dealloc(Shadow *self)
{
    PyMem_Free(self->uses);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef methods[] = {
    {"use", (PyCFunction)shadow_use, METH_O, NULL},
    {"lose", (PyCFunction)(void (*)(void))shadow_lose, METH_FASTCALL, NULL},
    {"lacking", (PyCFunction)(void (*)(void))shadow_lacking, METH_FASTCALL, NULL},
    {"regain", (PyCFunction)(void (*)(void))shadow_regain, METH_FASTCALL, NULL},
    {"forget", (PyCFunction)shadow_forget, METH_VARARGS, NULL},
    {"remember", (PyCFunction)shadow_remember, METH_O, NULL},
    {"__deepcopy__", (PyCFunction)shadow_copy, METH_O, NULL},
    {NULL},
};

static PyObject *
shadow_oldest(Shadow *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->base + self->oldest);
}

static PyGetSetDef getters[] = {
    {"oldest", (getter)shadow_oldest, NULL, NULL, NULL},
    {NULL},
};

static PyMemberDef members[] = {
    {"apart", T_LONGLONG, offsetof(Shadow, apart), READONLY, NULL},
    {"missed", T_DOUBLE, offsetof(Shadow, missed), READONLY, NULL},
    {"spared", T_DOUBLE, offsetof(Shadow, spared), READONLY, NULL},
    {NULL},
};

PyTypeObject ShadowType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvloft._table.ShadowLRU",
    .tp_basicsize = sizeof(Shadow),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = shadow_new,
    .tp_dealloc = (destructor)shadow_dealloc,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = getters,
};
