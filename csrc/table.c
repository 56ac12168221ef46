/* What `Queues` and `Homes` do alike, and an `Index` in part. */
#include "keys.h"

Py_ssize_t
table_len(Table *self)
{
    return self->keys.count;
}

int
table_contains(Table *self, PyObject *key)
{
    uint32_t number;
    return keys_find(&self->keys, key, &number) < 0 ? -1 : number != NONE;
}

/* Over all keys as they are now, by number. */
PyObject *
table_iter(Table *self)
{
    Keys *keys = &self->keys;
    if (keys_enter(keys) < 0) /* making a list may run finalizers */
        return NULL;
    PyObject *list = PyList_New(keys->count);
    Py_ssize_t at = 0;
    for (uint32_t number = 0; list && number < keys->fresh; number++)
        if (keys->entries[number].key)
            PyList_SET_ITEM(list, at++, Py_NewRef(keys->entries[number].key));
    keys_leave(keys);
    PyObject *iter = list ? PyObject_GetIter(list) : NULL;
    Py_XDECREF(list);
    return iter;
}

void
table_dealloc(Table *self)
{
    keys_free(&self->keys);
    Py_TYPE(self)->tp_free(self);
}
