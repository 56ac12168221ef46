/* Distinct keys under small numbers: the hash table that `Index`, `Queues` and `Homes` are made of.
 *
 * Keys are any hashable Python objects. A slot of the hash table holds a key's number and part of its hash; the entry of that
 * number holds the key and what its owner notes about it, 16 bytes in all. Slots are probed linearly, at most 7/8 of them are
 * taken, and nothing is left behind where a key was. Entries are no objects, so the garbage collector has nothing to visit:
 * a key that refers to the table it is in is never collected.
 *
 * A batch is found first, with the memory of many keys asked for at a time, and changed afterwards. Only finding may run
 * Python code (`__hash__` and `__eq__` of keys that are no plain bytes), so a batch that fails changes nothing, and a table
 * that such code tries to change refuses. While one thread is in a call that may run such code, others are refused: what it
 * has found would not be there any more.
 */
#ifndef KVLOFT_KEYS_H
#define KVLOFT_KEYS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NONE UINT32_MAX
#define WAS_IN (UINT32_C(1) << 31)
#define MOST ((Py_ssize_t)1 << 30) /* entries of one table */

typedef struct {
    PyObject *key; /* NULL: the number is not in use */
    union {
        struct { /* in Queues */
            uint32_t newer : 30, queue : 2;
            uint32_t older;
        };
        struct { /* in an Index */
            uint32_t readers : 31, writing : 1;
            uint32_t place; /* among the busy ones, if it is one */
        };
        int64_t home; /* in Homes */
        struct { /* without a key */
            uint32_t next; /* number given back */
            uint32_t away; /* not given back yet */
        };
    };
} Entry;

typedef struct {
    uint32_t tag;  /* 32 mixed bits of the key's hash: they give its home, and tell most strangers apart */
    uint32_t taken; /* the key's number plus 1; 0: empty */
} Slot;

typedef struct {
    Slot *slots;
    Entry *entries;
    uint32_t places;   /* slots */
    uint32_t room;     /* entries */
    uint32_t fresh;    /* the first number never used */
    uint32_t returned; /* the number given back last, or NONE */
    uint32_t spare;    /* numbers given back */
    uint32_t count;    /* keys */
    uint32_t in_use;   /* by so many searches and batches; it does not change then */
    unsigned long user; /* the thread whose they are */
} Keys;

/* Keys of one call, and where they are. As long as it lasts, the table is in use. */
typedef struct {
    Keys *keys;
    PyObject *items; /* a list or tuple */
    Py_ssize_t count;
    uint32_t *tags;
    uint32_t *numbers; /* NONE: not in the table */
} Batch;

/* Between these the table does not change, but by the caller's own hand. Entering fails while another thread is in. */
int keys_enter(Keys *keys);
void keys_leave(Keys *keys);

/* Setting up. What returns int returns 0, or -1 with an exception set. */
int keys_init(Keys *keys, Py_ssize_t room, bool touch);
int keys_copy(Keys *keys, const Keys *from); /* RuntimeError if that is in use */
void keys_clear(Keys *keys, uint32_t first); /* drops all keys; numbers are handed out from `first` on */
void keys_free(Keys *keys);

/* Finding. */
int keys_find(Keys *keys, PyObject *key, uint32_t *number); /* NONE if it is not in */
int batch_find(Batch *batch, Keys *keys, PyObject *items);
int batch_find_all(Batch *batch, Keys *keys, PyObject *items); /* KeyError if one is not in */
void batch_free(Batch *batch);
PyObject *batch_item(const Batch *batch, Py_ssize_t at); /* a new reference */

/* What slots keep of a hash. */
static inline uint32_t
tag_of(Py_hash_t hash)
{
    return (uint32_t)(((uint64_t)hash * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
}

/* The slot where the search for a key begins. */
static inline uint32_t
keys_home(const Keys *keys, uint32_t tag)
{
    return (uint32_t)(((uint64_t)tag * keys->places) >> 32);
}

/* Ask for the slots that a search will look at: some at the end of a cache line go on in the next. */
static inline void
keys_ahead(const Keys *keys, uint32_t tag)
{
    const Slot *home = &keys->slots[keys_home(keys, tag)];
    __builtin_prefetch(home);
    __builtin_prefetch(home + 4);
}

/* Ask for what a change of a later key will need: a large batch does not stay in the cache after it was found. */
static inline void
batch_ahead(const Batch *batch, Py_ssize_t at)
{
    at += 8;
    if (at < batch->count) {
        keys_ahead(batch->keys, batch->tags[at]);
        if (batch->numbers[at] != NONE)
            __builtin_prefetch(&batch->keys->entries[batch->numbers[at]], 1);
    }
}

/* Which keys to pick: what is known of one, NULL if it is not in, and whatever else the choice depends on. */
typedef bool (*Choice)(const Entry *entry, unsigned detail);
PyObject *keys_pick(Keys *keys, PyObject *items, Choice choice, unsigned detail); /* a list, in the order given */
bool is_present(const Entry *entry, unsigned detail);
bool is_absent(const Entry *entry, unsigned detail);

/* Whether both are plain bytes and equal. */
static inline bool
same_bytes(PyObject *one, PyObject *other)
{
    return PyBytes_CheckExact(one) && PyBytes_CheckExact(other) && Py_SIZE(one) == Py_SIZE(other) &&
           memcmp(PyBytes_AS_STRING(one), PyBytes_AS_STRING(other), (size_t)Py_SIZE(one)) == 0;
}

/* Changing. Whoever does asks first whether the table may be changed. */
int keys_may_change(const Keys *keys);
int keys_reserve(Keys *keys, uint64_t more_keys, uint64_t more_numbers);
int batch_reserve(const Batch *batch); /* makes room for those that are not in */
int batch_add(Batch *batch, bool strict); /* numbers of those that were in get WAS_IN; if strict, these are a ValueError */
PyObject *keys_remove(Keys *keys, uint32_t number, uint32_t tag); /* the key; the caller drops it, and has the number */
uint32_t keys_take_number(Keys *keys); /* room must have been made */
void keys_give_back(Keys *keys, uint32_t number);

/* Numbers leave as an array of integers: nothing has to be made for each of them. */
PyObject *new_array(Py_ssize_t count, Py_buffer *view);
/* Out of an iterable of integers, each below `end`; their count, or -1 with an exception set. `what` they count. */
Py_ssize_t read_numbers(PyObject *given, uint32_t end, const char *what, uint32_t **numbers);

/* The objects: each begins like this. */
typedef struct {
    PyObject_HEAD
    Keys keys;
} Table;

Py_ssize_t table_len(Table *self);
int table_contains(Table *self, PyObject *key);
PyObject *table_iter(Table *self);
void table_dealloc(Table *self);

/* Functions of no table. */
PyObject *exchange(PyObject *module, PyObject *args); /* numbers of one array for numbers of another, one by one */
PyObject *untracked(PyObject *module, PyObject *items); /* a tuple that the garbage collector need not visit */
PyObject *distinct(PyObject *module, PyObject *items); /* a list of the keys of an iterable, each once, as they come first */
PyObject *ascending(PyObject *module, PyObject *values); /* whether no integer is less than the one before */

extern PyObject *array_type; /* Python's array.array */
extern PyTypeObject IndexType, AnswersType, QueuesType, HomesType;

#endif
