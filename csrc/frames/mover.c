/* `Mover`: threads of its own, without an interpreter, that move runs. */
#include "run.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { READS, WRITES, KINDS };

typedef struct {
    Run *first, **last;
} Queue;

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t work, news[KINDS];
    Queue waiting[KINDS], ended[KINDS];
    bool woken[KINDS], closing;
    int threads, started, listening; /* threads: of its own, those that have begun, and those that wait for news */
} Shared;

typedef struct {
    PyObject_HEAD
    Shared *shared;
    pthread_t *threads;
    int count;
    pid_t process;
} Mover;

static void
queue_clear(Queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

static void
queue_put(Queue *queue, Run *run)
{
    run->next = NULL;
    *queue->last = run;
    queue->last = &run->next;
}

static Run *
queue_take(Queue *queue)
{
    Run *run = queue->first;
    if (run && !(queue->first = run->next))
        queue_clear(queue);
    return run;
}

/* Reads go first, but one thread prefers writes, so that neither starves; a thread that is alone takes turns. */
static void *
work(void *given)
{
    Shared *shared = given;
    Scratch scratch = {NULL, 0};
    pthread_mutex_lock(&shared->mutex);
    int preferred = shared->started++ == 0 ? WRITES : READS;
    for (;;) {
        Run *run = queue_take(&shared->waiting[preferred]);
        if (!run)
            run = queue_take(&shared->waiting[1 - preferred]);
        if (!run && shared->closing)
            break;
        if (!run) {
            pthread_cond_wait(&shared->work, &shared->mutex);
            continue;
        }
        pthread_mutex_unlock(&shared->mutex);
        run_move(run, &scratch);
        pthread_mutex_lock(&shared->mutex);
        if (shared->threads == 1)
            preferred = run->writing ? READS : WRITES;
        queue_put(&shared->ended[run->writing], run);
        pthread_cond_signal(&shared->news[run->writing]);
    }
    pthread_mutex_unlock(&shared->mutex);
    free(scratch.at);
    return NULL;
}

static bool
is_open(Mover *self)
{
    if (self->shared && self->process == getpid())
        return true;
    PyErr_SetString(PyExc_ValueError, "the mover is closed, or another process's");
    return false;
}

/* Making the run may have run code that closed the mover. */
static PyObject *
start(Mover *self, Run *run)
{
    if (!is_open(self)) {
        run_free(run);
        return NULL;
    }
    pthread_mutex_lock(&self->shared->mutex);
    queue_put(&self->shared->waiting[run->writing], run);
    pthread_cond_signal(&self->shared->work);
    pthread_mutex_unlock(&self->shared->mutex);
    Py_RETURN_NONE;
}

static PyObject *
mover_read(Mover *self, PyObject *args)
{
    PyObject *token, *slots;
    int fd;
    long long offset;
    if (!PyArg_ParseTuple(args, "OiO!L", &token, &fd, &PyTuple_Type, &slots, &offset))
        return NULL;
    Run *run = run_new(token, slots, false);
    if (!run)
        return NULL;
    run->fd = fd;
    run->offset = offset;
    return start(self, run);
}

static PyObject *
mover_write(Mover *self, PyObject *args)
{
    PyObject *token, *slots, *notes;
    int fd, index, sync;
    long long offset;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(args, "OiO!LiO!np", &token, &fd, &PyTuple_Type, &slots, &offset, &index, &PyTuple_Type, &notes, &first,
                          &sync))
        return NULL;
    if (PyTuple_GET_SIZE(notes) > NOTES || first < 0 || first > PyTuple_GET_SIZE(notes))
        return PyErr_Format(PyExc_ValueError, "%zd notes, %zd of them first; give at most %d", PyTuple_GET_SIZE(notes), first, NOTES);
    Run *run = run_new(token, slots, true);
    if (!run)
        return NULL;
    run->fd = fd;
    run->offset = offset;
    run->index = index;
    run->sync = sync;
    run->notes_first = first;
    run->notes_given = Py_NewRef(notes);
    for (; run->notes_count < PyTuple_GET_SIZE(notes); run->notes_count++) {
        Note *note = &run->notes[run->notes_count];
        PyObject *bytes;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(notes, run->notes_count), "LS", &note->offset, &bytes)) {
            run_free(run);
            return NULL;
        }
        note->bytes = PyBytes_AS_STRING(bytes);
        note->length = PyBytes_GET_SIZE(bytes);
    }
    return start(self, run);
}

static Run *
next_ended(Shared *shared, int kind, bool wait)
{
    pthread_mutex_lock(&shared->mutex);
    shared->listening++;
    while (wait && !shared->ended[kind].first && !shared->woken[kind] && !shared->closing)
        pthread_cond_wait(&shared->news[kind], &shared->mutex);
    Run *first = shared->ended[kind].first;
    queue_clear(&shared->ended[kind]);
    if (wait || first)
        shared->woken[kind] = false;
    shared->listening--;
    if (shared->closing)
        pthread_cond_signal(&shared->work);
    pthread_mutex_unlock(&shared->mutex);
    return first;
}

static PyObject *
how_it_ended(const Run *run)
{
    if (run->writing || run->error)
        return Py_BuildValue("(Oni)", run->token, run->done, run->error);
    return Py_BuildValue("(Oy#i)", run->token, run->defects, run->done, 0);
}

static PyObject *
mover_wait(Mover *self, PyObject *args)
{
    int writing;
    if (!PyArg_ParseTuple(args, "p", &writing))
        return NULL;
    PyObject *ended = PyList_New(0);
    if (!ended || !is_open(self)) {
        Py_XDECREF(ended);
        return NULL;
    }
    Shared *shared = self->shared; /* `close` lets it go once nobody listens */
    Run *run = next_ended(shared, writing, false);
    if (!run) {
        Py_BEGIN_ALLOW_THREADS
        run = next_ended(shared, writing, true);
        Py_END_ALLOW_THREADS
    }
    while (run) {
        Run *next = run->next;
        PyObject *how = ended ? how_it_ended(run) : NULL;
        if (ended && (!how || PyList_Append(ended, how) < 0))
            Py_CLEAR(ended);
        Py_XDECREF(how);
        run_free(run);
        run = next;
    }
    return ended;
}

static PyObject *
mover_wake(Mover *self, PyObject *args)
{
    int writing;
    if (!PyArg_ParseTuple(args, "p", &writing) || !is_open(self))
        return NULL;
    pthread_mutex_lock(&self->shared->mutex);
    self->shared->woken[writing] = true;
    pthread_cond_signal(&self->shared->news[writing]);
    pthread_mutex_unlock(&self->shared->mutex);
    Py_RETURN_NONE;
}

static PyObject *
mover_close(Mover *self, PyObject *Py_UNUSED(none))
{
    Shared *shared = self->shared;
    self->shared = NULL; /* from now on it is closed to others */
    if (shared && self->process == getpid()) {
        Py_BEGIN_ALLOW_THREADS
        pthread_mutex_lock(&shared->mutex);
        shared->closing = true;
        pthread_cond_broadcast(&shared->work);
        for (int kind = 0; kind < KINDS; kind++)
            pthread_cond_broadcast(&shared->news[kind]);
        pthread_mutex_unlock(&shared->mutex);
        for (int i = 0; i < self->count; i++)
            pthread_join(self->threads[i], NULL);
        pthread_mutex_lock(&shared->mutex);
        while (shared->listening)
            pthread_cond_wait(&shared->work, &shared->mutex);
        pthread_mutex_unlock(&shared->mutex);
        Py_END_ALLOW_THREADS
        for (int kind = 0; kind < KINDS; kind++)
            for (Run *run; (run = queue_take(&shared->ended[kind]));)
                run_free(run);
        pthread_mutex_destroy(&shared->mutex);
        free(shared);
    }
    Py_RETURN_NONE;
}

static PyObject *
mover_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *known[] = {"threads", NULL};
    int threads;
    if (!PyArg_ParseTupleAndKeywords(args, names, "i", known, &threads))
        return NULL;
    if (threads < 1)
        return PyErr_Format(PyExc_ValueError, "%d threads move nothing; give at least 1", threads);
    Mover *self = (Mover *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->process = getpid();
    self->threads = PyMem_New(pthread_t, threads);
    if (!self->threads || !(self->shared = calloc(1, sizeof *self->shared))) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->shared->threads = threads;
    pthread_mutex_init(&self->shared->mutex, NULL);
    pthread_cond_init(&self->shared->work, NULL);
    for (int kind = 0; kind < KINDS; kind++) {
        pthread_cond_init(&self->shared->news[kind], NULL);
        queue_clear(&self->shared->waiting[kind]);
        queue_clear(&self->shared->ended[kind]);
    }
    /* Signals are for the interpreter's threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (self->count < threads && !pthread_create(&self->threads[self->count], NULL, work, self->shared))
        self->count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (self->count < threads) {
        PyErr_Format(PyExc_RuntimeError, "the system gave %d of %d threads", self->count, threads);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void
mover_dealloc(Mover *self)
{
    Py_XDECREF(mover_close(self, NULL));
    PyMem_Free(self->threads);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef methods[] = {
    {"read", (PyCFunction)mover_read, METH_VARARGS, NULL},
    {"write", (PyCFunction)mover_write, METH_VARARGS, NULL},
    {"wait", (PyCFunction)mover_wait, METH_VARARGS, NULL},
    {"wake", (PyCFunction)mover_wake, METH_VARARGS, NULL},
    {"close", (PyCFunction)mover_close, METH_NOARGS, NULL},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL},
};

PyTypeObject MoverType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvloft._frames.Mover",
    .tp_basicsize = sizeof(Mover),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = mover_new,
    .tp_dealloc = (destructor)mover_dealloc,
    .tp_methods = methods,
};
