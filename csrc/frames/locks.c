/* Locks on single bytes of a file, many at once: see fcntl(2), "open file description locks". */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "frame.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

PyObject *
lock_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given, *result = NULL;
    int fd, take, error = 0;
    if (!PyArg_ParseTuple(args, "iOp", &fd, &given, &take))
        return NULL;
    PyObject *starts = PySequence_Tuple(given);
    if (!starts)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(starts), tried = 0;
    struct flock *locks = PyMem_Calloc(count, sizeof *locks);
    bool *taken = PyMem_Calloc(count, sizeof *taken);
    if (!locks || !taken)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < count; i++) {
        locks[i].l_type = take ? F_WRLCK : F_UNLCK;
        locks[i].l_whence = SEEK_SET;
        locks[i].l_len = 1;
        locks[i].l_start = PyLong_AsLongLong(PyTuple_GET_ITEM(starts, i));
    }
    if (PyErr_Occurred())
        goto done;
    Py_BEGIN_ALLOW_THREADS
    for (; tried < count && !error; tried++) {
        taken[tried] = fcntl(fd, F_OFD_SETLK, &locks[tried]) == 0;
        if (!taken[tried] && errno != EAGAIN && errno != EACCES)
            error = errno;
    }
    Py_END_ALLOW_THREADS
    if (error) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        goto done;
    }
    result = PyList_New(count);
    for (Py_ssize_t i = 0; result && i < count; i++)
        PyList_SET_ITEM(result, i, Py_NewRef(taken[i] ? Py_True : Py_False));
done:
    Py_DECREF(starts);
    PyMem_Free(locks);
    PyMem_Free(taken);
    return result;
}
