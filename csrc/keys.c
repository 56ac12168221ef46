#include "keys.h"

#include <stdlib.h>
#include <sys/mman.h>

#define GROUP 32 /* keys whose memory is asked for together */
#define HUGE_PAGE ((size_t)2 << 20)

static size_t
in_pages(size_t bytes)
{
    return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

/* Zeroed memory, touched now if it will be needed at once. Then what is large lies in huge pages, for a random access to small
 * ones waits for their addresses as well. Else in small ones: the first touch of a huge page may take the kernel milliseconds,
 * and a batch touches dozens of them. */
static void *
allocate(size_t count, size_t size, bool touch)
{
    size_t bytes = count * size, pages = in_pages(bytes);
    if (bytes < HUGE_PAGE) {
        void *memory = calloc(count + 1, size);
        if (!memory)
            PyErr_NoMemory();
        return memory;
    }
    char *mapped = mmap(NULL, pages + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        PyErr_NoMemory();
        return NULL;
    }
    size_t before = (HUGE_PAGE - (uintptr_t)mapped % HUGE_PAGE) % HUGE_PAGE;
    char *memory = mapped + before;
    if (before)
        munmap(mapped, before);
    munmap(memory + pages, HUGE_PAGE - before);
    if (touch) {
        (void)madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* a wish; kernels without them refuse */
        memset(memory, 0, bytes);
    }
    return memory;
}

static void
release(void *memory, size_t count, size_t size)
{
    if (count * size < HUGE_PAGE)
        free(memory);
    else if (memory)
        munmap(memory, in_pages(count * size));
}

/* Slots. */

static inline uint32_t
after(const Keys *keys, uint32_t at)
{
    return at + 1 == keys->places ? 0 : at + 1;
}

static inline uint32_t
distance(const Keys *keys, uint32_t from, uint32_t to)
{
    return to >= from ? to - from : to + keys->places - from;
}

static void
put_slot(Keys *keys, Slot slot)
{
    uint32_t at = keys_home(keys, slot.tag);
    while (keys->slots[at].taken)
        at = after(keys, at);
    keys->slots[at] = slot;
}

/* Close the gap at a slot: what was pushed past it moves back. */
static void
empty_slot(Keys *keys, uint32_t at)
{
    for (uint32_t next = after(keys, at); keys->slots[next].taken; next = after(keys, next)) {
        Slot slot = keys->slots[next];
        if (distance(keys, keys_home(keys, slot.tag), next) >= distance(keys, at, next)) {
            keys->slots[at] = slot;
            at = next;
        }
    }
    keys->slots[at].taken = 0;
}

static int
grow_slots(Keys *keys, uint64_t places, bool touch)
{
    if (places > UINT32_MAX) {
        PyErr_NoMemory();
        return -1;
    }
    Slot *slots = allocate(places, sizeof(Slot), touch), *old = keys->slots;
    if (!slots)
        return -1;
    uint32_t before = keys->places;
    keys->slots = slots;
    keys->places = (uint32_t)places;
    for (uint32_t at = 0; at < before; at++)
        if (old[at].taken)
            put_slot(keys, old[at]);
    release(old, before, sizeof(Slot));
    return 0;
}

static int
grow_entries(Keys *keys, size_t room, bool touch)
{
    Entry *entries = allocate(room, sizeof(Entry), touch);
    if (!entries)
        return -1;
    if (keys->fresh)
        memcpy(entries, keys->entries, keys->fresh * sizeof(Entry));
    release(keys->entries, keys->room, sizeof(Entry));
    keys->entries = entries;
    keys->room = (uint32_t)room;
    return 0;
}

/* Using. */

int
keys_enter(Keys *keys)
{
    unsigned long me = PyThread_get_thread_ident();
    if (keys->in_use && keys->user != me) {
        PyErr_SetString(PyExc_RuntimeError, "a table is in use by another thread");
        return -1;
    }
    keys->user = me;
    keys->in_use++;
    return 0;
}

void
keys_leave(Keys *keys)
{
    keys->in_use--;
}

int
keys_may_change(const Keys *keys)
{
    if (!keys->in_use)
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "a table cannot be changed or copied while its keys are hashed, compared or dropped");
    return -1;
}

/* Setting up. */

int
keys_init(Keys *keys, Py_ssize_t room, bool touch)
{
    if (room < 0 || room > MOST) {
        PyErr_Format(PyExc_ValueError, "room: %zd is no number of keys from 0 to %zd", room, MOST);
        return -1;
    }
    *keys = (Keys){.returned = NONE};
    /* Two thirds full, a search looks at two or three neighbours. */
    bool made = grow_slots(keys, (uint64_t)room * 3 / 2 + 8, touch) == 0 && grow_entries(keys, (size_t)room, touch) == 0;
    return made ? 0 : -1;
}

int
keys_copy(Keys *keys, const Keys *from)
{
    if (keys_may_change(from) < 0)
        return -1;
    *keys = *from;
    keys->slots = allocate(from->places, sizeof(Slot), true);
    keys->entries = keys->slots ? allocate(from->room, sizeof(Entry), true) : NULL;
    if (!keys->entries) {
        release(keys->slots, from->places, sizeof(Slot));
        *keys = (Keys){.returned = NONE};
        return -1;
    }
    memcpy(keys->slots, from->slots, from->places * sizeof(Slot));
    memcpy(keys->entries, from->entries, from->fresh * sizeof(Entry));
    for (uint32_t number = 0; number < keys->fresh; number++)
        Py_XINCREF(keys->entries[number].key);
    return 0;
}

void
keys_clear(Keys *keys, uint32_t first)
{
    memset(keys->slots, 0, keys->places * sizeof(Slot));
    uint32_t fresh = keys->fresh;
    keys->fresh = first;
    keys->returned = NONE;
    keys->spare = keys->count = 0;
    /* Dropping a key may run its finalizer, which finds an empty table and may not change it. */
    (void)keys_enter(keys); /* nobody else is in, for the caller may change it */
    for (uint32_t number = 0; number < fresh; number++) {
        PyObject *key = keys->entries[number].key;
        if (key) {
            keys->entries[number] = (Entry){.key = NULL};
            Py_DECREF(key);
        }
    }
    keys_leave(keys);
}

void
keys_free(Keys *keys)
{
    if (keys->slots && keys->entries)
        keys_clear(keys, 0);
    release(keys->slots, keys->places, sizeof(Slot));
    release(keys->entries, keys->room, sizeof(Entry));
}

/* Finding. */

static int
same(PyObject *held, PyObject *key)
{
    if (held == key || same_bytes(held, key))
        return 1;
    if (PyBytes_CheckExact(held) && PyBytes_CheckExact(key))
        return 0;
    return PyObject_RichCompareBool(held, key, Py_EQ); /* the table holds `held`, and may not change */
}

/* The slot of a key, or the first empty one behind its home; -1 on error. */
static Py_ssize_t
find_slot(const Keys *keys, PyObject *key, uint32_t tag)
{
    for (uint32_t at = keys_home(keys, tag);; at = after(keys, at)) {
        Slot slot = keys->slots[at];
        if (!slot.taken)
            return at;
        if (slot.tag != tag)
            continue;
        int is = same(keys->entries[slot.taken - 1].key, key);
        if (is)
            return is < 0 ? -1 : (Py_ssize_t)at;
    }
}

int
keys_find(Keys *keys, PyObject *key, uint32_t *number)
{
    Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1 || keys_enter(keys) < 0)
        return -1;
    Py_ssize_t at = find_slot(keys, key, tag_of(hash));
    keys_leave(keys);
    if (at >= 0)
        *number = keys->slots[at].taken - 1;
    return at < 0 ? -1 : 0;
}

/* Hashing and comparing may run code that changes the list that was given. */
PyObject *
batch_item(const Batch *batch, Py_ssize_t at)
{
    if (PySequence_Fast_GET_SIZE(batch->items) == batch->count)
        return Py_NewRef(PySequence_Fast_GET_ITEM(batch->items, at));
    PyErr_SetString(PyExc_RuntimeError, "a batch of keys has changed while it was looked up");
    return NULL;
}

/* The first key with this tag, most likely the one that is sought; NONE if there is none. */
static uint32_t
find_tag(const Keys *keys, uint32_t tag)
{
    uint32_t at = keys_home(keys, tag);
    while (keys->slots[at].taken && keys->slots[at].tag != tag)
        at = after(keys, at);
    return keys->slots[at].taken - 1;
}

static int
hash_group(const Batch *batch, Py_ssize_t start, Py_ssize_t end)
{
    for (Py_ssize_t i = start; i < end; i++) {
        PyObject *key = batch_item(batch, i);
        Py_hash_t hash = key ? PyObject_Hash(key) : -1;
        Py_XDECREF(key);
        if (hash == -1)
            return -1;
        batch->tags[i] = tag_of(hash);
        keys_ahead(batch->keys, batch->tags[i]);
    }
    return 0;
}

/* Each step asks for the memory that the next one looks at, for all keys of the group: slots, entries, keys. */
static int
find_group(Batch *batch, Py_ssize_t start, Py_ssize_t end)
{
    const Keys *keys = batch->keys;
    if (hash_group(batch, start, end) < 0)
        return -1;
    for (Py_ssize_t i = start; i < end; i++) {
        batch->numbers[i] = find_tag(keys, batch->tags[i]);
        if (batch->numbers[i] != NONE)
            __builtin_prefetch(&keys->entries[batch->numbers[i]]);
    }
    for (Py_ssize_t i = start; i < end; i++)
        if (batch->numbers[i] != NONE) {
            const char *key = (const char *)keys->entries[batch->numbers[i]].key;
            __builtin_prefetch(key);
            __builtin_prefetch(key + sizeof(PyBytesObject) + 32);
        }
    for (Py_ssize_t i = start; i < end; i++) {
        if (batch->numbers[i] == NONE)
            continue;
        PyObject *key = batch_item(batch, i);
        int is = key ? same(keys->entries[batch->numbers[i]].key, key) : -1;
        Py_ssize_t at = is == 0 ? find_slot(keys, key, batch->tags[i]) : is;
        Py_XDECREF(key);
        if (at < 0)
            return -1;
        if (is == 0)
            batch->numbers[i] = keys->slots[at].taken - 1;
    }
    return 0;
}

int
batch_find(Batch *batch, Keys *keys, PyObject *items)
{
    *batch = (Batch){.keys = keys, .items = PySequence_Fast(items, "keys: give an iterable of them")};
    if (!batch->items)
        return -1;
    if (keys_enter(keys) < 0) {
        Py_DECREF(batch->items);
        return -1;
    }
    batch->count = PySequence_Fast_GET_SIZE(batch->items);
    batch->tags = malloc(2 * sizeof(uint32_t) * (size_t)(batch->count + 1));
    int found = batch->tags ? 0 : -1;
    if (found < 0)
        PyErr_NoMemory();
    batch->numbers = batch->tags + batch->count;
    for (Py_ssize_t start = 0; start < batch->count && found == 0; start += GROUP)
        found = find_group(batch, start, Py_MIN(batch->count, start + GROUP));
    if (found < 0)
        batch_free(batch);
    return found;
}

int
batch_find_all(Batch *batch, Keys *keys, PyObject *items)
{
    if (batch_find(batch, keys, items) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < batch->count; i++)
        if (batch->numbers[i] == NONE) {
            PyObject *key = batch_item(batch, i);
            if (key)
                PyErr_SetObject(PyExc_KeyError, key);
            Py_XDECREF(key);
            batch_free(batch);
            return -1;
        }
    return 0;
}

void
batch_free(Batch *batch)
{
    keys_leave(batch->keys);
    free(batch->tags);
    Py_DECREF(batch->items);
}

bool
is_present(const Entry *entry, unsigned detail)
{
    (void)detail;
    return entry != NULL;
}

bool
is_absent(const Entry *entry, unsigned detail)
{
    (void)detail;
    return entry == NULL;
}

PyObject *
keys_pick(Keys *keys, PyObject *items, Choice choice, unsigned detail)
{
    PyObject *picked = PyList_New(0);
    Batch batch;
    if (!picked || batch_find(&batch, keys, items) < 0) {
        Py_XDECREF(picked);
        return NULL;
    }
    for (Py_ssize_t i = 0; picked && i < batch.count; i++) {
        uint32_t number = batch.numbers[i];
        if (!choice(number == NONE ? NULL : &keys->entries[number], detail))
            continue;
        PyObject *key = batch_item(&batch, i);
        if (!key || PyList_Append(picked, key) < 0)
            Py_CLEAR(picked);
        Py_XDECREF(key);
    }
    batch_free(&batch);
    return picked;
}

/* Changing. */

int
keys_reserve(Keys *keys, uint64_t more_keys, uint64_t more_numbers)
{
    uint64_t wanted = keys->count + more_keys, numbers = keys->fresh - keys->spare + more_numbers;
    if (numbers > (uint64_t)MOST) {
        PyErr_NoMemory();
        return -1;
    }
    if (wanted * 8 > (uint64_t)keys->places * 7 && grow_slots(keys, wanted * 2 + 8, true) < 0)
        return -1;
    return numbers > keys->room ? grow_entries(keys, (size_t)(numbers + numbers / 2), true) : 0;
}

int
batch_reserve(const Batch *batch)
{
    uint64_t more = 0;
    for (Py_ssize_t i = 0; i < batch->count; i++)
        more += batch->numbers[i] == NONE;
    return keys_reserve(batch->keys, more, more);
}

uint32_t
keys_take_number(Keys *keys)
{
    uint32_t number = keys->returned;
    if (number == NONE)
        return keys->fresh++;
    keys->returned = keys->entries[number].next;
    keys->spare--;
    return number;
}

/* What was found is in. What was not may come twice in a batch, so it is searched for once more before it is added. */
static int
add_one(Batch *batch, Py_ssize_t i, bool strict)
{
    Keys *keys = batch->keys;
    PyObject *key = batch_item(batch, i);
    if (!key)
        return -1;
    uint32_t known = batch->numbers[i];
    if (known == NONE) {
        Py_ssize_t at = find_slot(keys, key, batch->tags[i]);
        if (at < 0)
            goto failed;
        if (!keys->slots[at].taken) {
            uint32_t number = batch->numbers[i] = keys_take_number(keys);
            keys->slots[at] = (Slot){batch->tags[i], number + 1};
            keys->entries[number] = (Entry){.key = key};
            keys->count++;
            return 0;
        }
        known = keys->slots[at].taken - 1;
    }
    if (!strict) {
        batch->numbers[i] = known | WAS_IN;
        Py_DECREF(key);
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "key %R is in already", key);
failed:
    Py_DECREF(key);
    return -1;
}

int
batch_add(Batch *batch, bool strict)
{
    Py_ssize_t done = 0;
    for (; done < batch->count; done++) {
        batch_ahead(batch, done);
        if (add_one(batch, done, strict) < 0)
            break;
    }
    if (done == batch->count)
        return 0;
    while (done--)
        if (!(batch->numbers[done] & WAS_IN)) {
            Py_DECREF(keys_remove(batch->keys, batch->numbers[done], batch->tags[done]));
            keys_give_back(batch->keys, batch->numbers[done]);
        }
    return -1;
}

PyObject *
keys_remove(Keys *keys, uint32_t number, uint32_t tag)
{
    uint32_t at = keys_home(keys, tag);
    while (keys->slots[at].taken != number + 1)
        at = after(keys, at);
    empty_slot(keys, at);
    PyObject *key = keys->entries[number].key;
    keys->entries[number] = (Entry){.key = NULL};
    keys->count--;
    return key;
}

void
keys_give_back(Keys *keys, uint32_t number)
{
    keys->entries[number] = (Entry){.next = keys->returned, .away = 0};
    keys->returned = number;
    keys->spare++;
}
