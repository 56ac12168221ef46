/* `Index`: which block is in which slot, and what it is used for. */
#include "keys.h"

#include <stdlib.h>

/* A block's number is its slot. */
typedef struct {
    PyObject_HEAD
    Keys keys;
    uint32_t *busy; /* numbers of the blocks that are written or read, in no order */
    uint32_t busy_room, busy_count;
    uint32_t writing, away;
    uint32_t last, guess; /* the block looked up last, and the one that probably comes next */
} Index;

enum { MISS, PENDING, HIT };

/* Blocks in use. */

static int
reserve_busy(Index *self, Py_ssize_t more)
{
    size_t wanted = self->busy_count + (size_t)more;
    if (wanted <= self->busy_room)
        return 0;
    uint32_t *busy = realloc(self->busy, (wanted + wanted / 2) * sizeof(uint32_t));
    if (!busy) {
        PyErr_NoMemory();
        return -1;
    }
    self->busy = busy;
    self->busy_room = (uint32_t)(wanted + wanted / 2);
    return 0;
}

static void
enter_busy(Index *self, uint32_t number)
{
    self->keys.entries[number].place = self->busy_count;
    self->busy[self->busy_count++] = number;
}

static void
leave_busy(Index *self, uint32_t number)
{
    uint32_t place = self->keys.entries[number].place, moved = self->busy[--self->busy_count];
    self->busy[place] = moved;
    self->keys.entries[moved].place = place;
}

/* Looking. */

/* Blocks of a chain mostly lie one behind the other, so the next one asked for is compared before it is searched. */
static int
find_next(Index *self, PyObject *key, uint32_t *number)
{
    Keys *keys = &self->keys;
    *number = self->guess;
    PyObject *held = *number < keys->fresh ? keys->entries[*number].key : NULL;
    if (!held || (held != key && !same_bytes(held, key))) {
        if (keys_find(keys, key, number) < 0)
            return -1;
        if (*number == NONE)
            return 0;
    }
    uint32_t step = *number - self->last; /* 1, or -1 where a chain lies the other way round */
    self->last = *number;
    self->guess = step + 1 <= 2 ? *number + step : NONE;
    uint32_t soon = *number + 4 * step;
    if (self->guess != NONE && soon < keys->fresh)
        __builtin_prefetch(keys->entries[soon].key);
    return 0;
}

static int
state_of(Index *self, PyObject *key)
{
    uint32_t number;
    if (find_next(self, key, &number) < 0)
        return -1;
    return number == NONE ? MISS : self->keys.entries[number].writing ? PENDING : HIT;
}

static PyObject *
index_state(Index *self, PyObject *key)
{
    int state = state_of(self, key);
    return state < 0 ? NULL : PyLong_FromLong(state);
}

static PyObject *
index_leading(Index *self, PyObject *given)
{
    PyObject *items = PySequence_Fast(given, "keys: give an iterable of them");
    if (!items)
        return NULL;
    Py_ssize_t at = 0;
    int state = HIT;
    while (state == HIT && at < PySequence_Fast_GET_SIZE(items)) {
        PyObject *key = Py_NewRef(PySequence_Fast_GET_ITEM(items, at));
        state = state_of(self, key);
        Py_DECREF(key);
        at += state == HIT;
    }
    Py_DECREF(items);
    return state < 0 ? NULL : PyLong_FromSsize_t(at);
}

static int
index_contains(Index *self, PyObject *key)
{
    int state = state_of(self, key);
    return state < 0 ? -1 : state != MISS;
}

static bool
is_ready(const Entry *entry, unsigned detail)
{
    (void)detail;
    return entry && !entry->writing;
}

static PyObject *
index_present(Index *self, PyObject *given)
{
    return keys_pick(&self->keys, given, is_present, 0);
}

static PyObject *
index_absent(Index *self, PyObject *given)
{
    return keys_pick(&self->keys, given, is_absent, 0);
}

static PyObject *
index_ready(Index *self, PyObject *given)
{
    return keys_pick(&self->keys, given, is_ready, 0);
}

static PyObject *
index_busy(Index *self, PyObject *Py_UNUSED(ignored))
{
    if (keys_enter(&self->keys) < 0) /* making a list may run finalizers */
        return NULL;
    PyObject *busy = PyList_New(self->busy_count);
    for (uint32_t at = 0; busy && at < self->busy_count; at++)
        PyList_SET_ITEM(busy, at, Py_NewRef(self->keys.entries[self->busy[at]].key));
    keys_leave(&self->keys);
    return busy;
}

/* Changing. Each call finds its batch, makes sure that nothing can fail any more, and then does it. */

static PyObject *
finish(Batch *batch, PyObject *array, Py_buffer *view)
{
    batch_free(batch);
    if (array)
        PyBuffer_Release(view);
    return array;
}

static PyObject *
index_slots(Index *self, PyObject *given)
{
    Batch batch;
    Py_buffer view;
    if (batch_find_all(&batch, &self->keys, given) < 0)
        return NULL;
    PyObject *array = new_array(batch.count, &view);
    for (Py_ssize_t i = 0; array && i < batch.count; i++)
        ((int64_t *)view.buf)[i] = batch.numbers[i];
    return finish(&batch, array, &view);
}

static PyObject *
index_take(Index *self, PyObject *given)
{
    Batch batch;
    Py_buffer view;
    if (keys_may_change(&self->keys) < 0 || batch_find(&batch, &self->keys, given) < 0)
        return NULL;
    uint32_t free_slots = self->keys.room - self->keys.fresh + self->keys.spare;
    if (batch.count > free_slots) {
        PyErr_Format(PyExc_ValueError, "%zd slots are wanted and %u are free", batch.count, free_slots);
        return finish(&batch, NULL, NULL);
    }
    PyObject *array = reserve_busy(self, batch.count) < 0 ? NULL : new_array(batch.count, &view);
    if (array && batch_add(&batch, true) < 0) {
        PyBuffer_Release(&view);
        Py_CLEAR(array);
    }
    for (Py_ssize_t i = 0; array && i < batch.count; i++) {
        self->keys.entries[batch.numbers[i]].writing = 1;
        enter_busy(self, batch.numbers[i]);
        ((int64_t *)view.buf)[i] = batch.numbers[i];
    }
    self->writing += array ? (uint32_t)batch.count : 0;
    return finish(&batch, array, &view);
}

static PyObject *
index_land(Index *self, PyObject *given)
{
    Batch batch;
    if (keys_may_change(&self->keys) < 0 || batch_find_all(&batch, &self->keys, given) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < batch.count; i++) {
        Entry *entry = &self->keys.entries[batch.numbers[i]];
        if (entry->writing) {
            entry->writing = 0;
            self->writing--;
            leave_busy(self, batch.numbers[i]);
        }
    }
    batch_free(&batch);
    Py_RETURN_NONE;
}

static PyObject *
index_drop(Index *self, PyObject *args, PyObject *names)
{
    static char *known[] = {"keys", "away", NULL};
    PyObject *given;
    int away = 0;
    Batch batch;
    Py_buffer view;
    if (!PyArg_ParseTupleAndKeywords(args, names, "O|p", known, &given, &away) || keys_may_change(&self->keys) < 0 ||
        batch_find_all(&batch, &self->keys, given) < 0)
        return NULL;
    PyObject *array = new_array(batch.count, &view);
    for (Py_ssize_t i = 0; array && i < batch.count; i++) {
        uint32_t number = batch.numbers[i];
        Entry *entry = &self->keys.entries[number];
        batch_ahead(&batch, i);
        ((int64_t *)view.buf)[i] = number;
        if (!entry->key)
            continue; /* named twice */
        if (entry->writing || entry->readers)
            leave_busy(self, number);
        self->writing -= entry->writing;
        PyObject *key = keys_remove(&self->keys, number, batch.tags[i]);
        if (away) {
            entry->away = 1;
            self->away++;
        }
        else
            keys_give_back(&self->keys, number);
        Py_DECREF(key);
    }
    return finish(&batch, array, &view);
}

static PyObject *
index_reclaim(Index *self, PyObject *given)
{
    uint32_t *numbers;
    if (keys_may_change(&self->keys) < 0 || keys_enter(&self->keys) < 0)
        return NULL;
    Py_ssize_t count = read_numbers(given, self->keys.room, "slots", &numbers);
    keys_leave(&self->keys);
    if (count < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        const Entry *entry = &self->keys.entries[numbers[i]];
        if (!entry->key && entry->away) {
            keys_give_back(&self->keys, numbers[i]);
            self->away--;
        }
    }
    free(numbers);
    Py_RETURN_NONE;
}

static PyObject *
index_pin(Index *self, PyObject *given)
{
    Batch batch;
    Py_buffer view;
    if (keys_may_change(&self->keys) < 0 || batch_find(&batch, &self->keys, given) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < batch.count; i++)
        if (batch.numbers[i] == NONE || self->keys.entries[batch.numbers[i]].writing) {
            batch_free(&batch);
            Py_RETURN_NONE;
        }
    PyObject *array = reserve_busy(self, batch.count) < 0 ? NULL : new_array(batch.count, &view);
    for (Py_ssize_t i = 0; array && i < batch.count; i++) {
        if (!self->keys.entries[batch.numbers[i]].readers++)
            enter_busy(self, batch.numbers[i]);
        ((int64_t *)view.buf)[i] = batch.numbers[i];
    }
    return finish(&batch, array, &view);
}

static PyObject *
index_unpin(Index *self, PyObject *given)
{
    Batch batch;
    if (keys_may_change(&self->keys) < 0 || batch_find_all(&batch, &self->keys, given) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < batch.count; i++) {
        Entry *entry = &self->keys.entries[batch.numbers[i]];
        if (entry->readers && !--entry->readers)
            leave_busy(self, batch.numbers[i]);
    }
    batch_free(&batch);
    Py_RETURN_NONE;
}

static PyObject *
index_clear(Index *self, PyObject *args)
{
    PyObject *given = NULL;
    uint32_t *numbers = NULL, room = self->keys.room;
    if (!PyArg_ParseTuple(args, "|O", &given) || keys_may_change(&self->keys) < 0 || keys_enter(&self->keys) < 0)
        return NULL;
    Py_ssize_t count = given ? read_numbers(given, room, "slots", &numbers) : 0;
    keys_leave(&self->keys);
    if (count < 0)
        return NULL;
    bool some = self->away || count;
    self->busy_count = self->writing = self->away = 0;
    keys_clear(&self->keys, 0);
    self->keys.fresh = some ? room : 0;
    for (Py_ssize_t i = 0; i < count; i++)
        self->keys.entries[numbers[i]].away = 1;
    free(numbers);
    for (uint32_t number = room; some && number-- > 0;)
        if (self->keys.entries[number].away)
            self->away++;
        else
            keys_give_back(&self->keys, number);
    Py_RETURN_NONE;
}

/* Answers: what a lookup tells, for a caller that asks key by key. */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Index *index;
    PyObject *answers[3];
} Answers;

static PyObject *
answers_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Answers *answers = (Answers *)self;
    if (!PyVectorcall_NARGS(nargsf) || names) {
        PyErr_SetString(PyExc_TypeError, "give a key, and by position");
        return NULL;
    }
    int state = state_of(answers->index, args[0]);
    return state < 0 ? NULL : Py_NewRef(answers->answers[state]);
}

static PyObject *
index_answers(Index *self, PyObject *args)
{
    PyObject *miss, *pending, *hit;
    if (!PyArg_ParseTuple(args, "OOO", &miss, &pending, &hit))
        return NULL;
    Answers *answers = PyObject_New(Answers, &AnswersType);
    if (!answers)
        return NULL;
    answers->call = answers_call;
    answers->index = (Index *)Py_NewRef(self);
    answers->answers[MISS] = Py_NewRef(miss);
    answers->answers[PENDING] = Py_NewRef(pending);
    answers->answers[HIT] = Py_NewRef(hit);
    return (PyObject *)answers;
}

static void
answers_dealloc(Answers *self)
{
    Py_DECREF(self->index);
    for (int state = MISS; state <= HIT; state++)
        Py_DECREF(self->answers[state]);
    PyObject_Free(self);
}

PyTypeObject AnswersType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvloft._table.Answers",
    .tp_basicsize = sizeof(Answers),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)answers_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Answers, call),
};

/* The type. */

static PyObject *
index_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *known[] = {"capacity", NULL};
    Py_ssize_t capacity;
    if (!PyArg_ParseTupleAndKeywords(args, names, "n", known, &capacity))
        return NULL;
    Index *self = (Index *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->guess = NONE;
    if (keys_init(&self->keys, capacity, true) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *
index_copy(Index *self, PyObject *Py_UNUSED(memo))
{
    Index *copy = (Index *)Py_TYPE(self)->tp_alloc(Py_TYPE(self), 0);
    if (!copy || keys_copy(&copy->keys, &self->keys) < 0)
        goto failed;
    copy->writing = self->writing;
    copy->away = self->away;
    copy->guess = NONE;
    if (reserve_busy(copy, self->busy_count) < 0)
        goto failed;
    copy->busy_count = self->busy_count;
    if (self->busy_count)
        memcpy(copy->busy, self->busy, self->busy_count * sizeof(uint32_t));
    return (PyObject *)copy;
failed:
    Py_XDECREF(copy);
    return NULL;
}

static void
index_dealloc(Index *self)
{
    keys_free(&self->keys);
    free(self->busy);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
get_free(Index *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(self->keys.room - self->keys.fresh + self->keys.spare);
}

static PyObject *
get_writing(Index *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(self->writing);
}

static PyObject *
get_pinned(Index *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(self->busy_count - self->writing);
}

static PyObject *
get_away(Index *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(self->away);
}

static PyMethodDef methods[] = {
    {"state", (PyCFunction)index_state, METH_O, NULL},
    {"leading", (PyCFunction)index_leading, METH_O, NULL},
    {"present", (PyCFunction)index_present, METH_O, NULL},
    {"absent", (PyCFunction)index_absent, METH_O, NULL},
    {"ready", (PyCFunction)index_ready, METH_O, NULL},
    {"busy", (PyCFunction)index_busy, METH_NOARGS, NULL},
    {"answers", (PyCFunction)index_answers, METH_VARARGS, NULL},
    {"slots", (PyCFunction)index_slots, METH_O, NULL},
    {"take", (PyCFunction)index_take, METH_O, NULL},
    {"land", (PyCFunction)index_land, METH_O, NULL},
    {"drop", (PyCFunction)(void (*)(void))index_drop, METH_VARARGS | METH_KEYWORDS, NULL},
    {"reclaim", (PyCFunction)index_reclaim, METH_O, NULL},
    {"pin", (PyCFunction)index_pin, METH_O, NULL},
    {"unpin", (PyCFunction)index_unpin, METH_O, NULL},
    {"clear", (PyCFunction)index_clear, METH_VARARGS, NULL},
    {"__copy__", (PyCFunction)index_copy, METH_NOARGS, NULL},
    {"__deepcopy__", (PyCFunction)index_copy, METH_O, NULL},
    {NULL},
};

static PyGetSetDef counts[] = {
    {"free", (getter)get_free, NULL, NULL, NULL},
    {"writing", (getter)get_writing, NULL, NULL, NULL},
    {"pinned", (getter)get_pinned, NULL, NULL, NULL},
    {"away", (getter)get_away, NULL, NULL, NULL},
    {NULL},
};

static PySequenceMethods sequence = {
    .sq_length = (lenfunc)table_len,
    .sq_contains = (objobjproc)index_contains,
};

PyTypeObject IndexType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvloft._table.Index",
    .tp_basicsize = sizeof(Index),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = index_new,
    .tp_iter = (getiterfunc)table_iter,
    .tp_dealloc = (destructor)index_dealloc,
    .tp_methods = methods,
    .tp_getset = counts,
    .tp_as_sequence = &sequence,
};
