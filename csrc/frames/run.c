#include "run.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAD = 1 << 16 };
/* Padding is written from zeros and read into a sink that nobody looks at. */
static uint8_t zeros[PAD], sink[PAD];

static Py_ssize_t
pad_of(const Run *run, Py_ssize_t i)
{
    return run->stride - run->page - run->payloads[i].len;
}

static const char *
digest_of(const Run *run, Py_ssize_t i)
{
    return PyBytes_AS_STRING(PyTuple_GET_ITEM(run->digests, i));
}

static bool
fits(const Run *run)
{
    if (run->page < HEADER || run->page > PAD || run->count < 1 || run->count > LONGEST) {
        PyErr_Format(PyExc_ValueError, "no run of 1 to %d slots with pages of %d to %d bytes", LONGEST, HEADER, PAD);
        return false;
    }
    for (Py_ssize_t i = 0; i < run->count; i++) {
        if (!is_name(PyTuple_GET_ITEM(run->digests, i)))
            return false;
        if (pad_of(run, i) < 0 || pad_of(run, i) >= PAD) {
            PyErr_Format(PyExc_ValueError, "%zd bytes are no payload of a slot of %zd", run->payloads[i].len, run->stride);
            return false;
        }
    }
    return true;
}

Run *
run_new(PyObject *token, PyObject *slots, bool writing)
{
    PyObject *fingerprint, *digests, *payloads;
    Run *run = PyMem_Calloc(1, sizeof *run);
    if (!run)
        return (Run *)PyErr_NoMemory();
    run->token = Py_NewRef(token);
    run->slots = Py_NewRef(slots);
    run->writing = writing;
    if (!PyArg_ParseTuple(slots, "OOOnnp", &fingerprint, &digests, &payloads, &run->page, &run->stride, &run->direct) ||
        !is_name(fingerprint))
        goto failed;
    run->fingerprint = PyBytes_AS_STRING(fingerprint);
    run->digests = PySequence_Tuple(digests);
    PyObject *each = run->digests ? PySequence_Fast(payloads, "payloads are no sequence") : NULL;
    if (!each)
        goto failed;
    run->count = PyTuple_GET_SIZE(run->digests);
    if (run->count != PySequence_Fast_GET_SIZE(each))
        PyErr_SetString(PyExc_ValueError, "give one payload for each digest");
    else if (!(run->payloads = PyMem_New(Py_buffer, run->count)))
        PyErr_NoMemory();
    else
        while (run->held < run->count && PyObject_GetBuffer(PySequence_Fast_GET_ITEM(each, run->held), &run->payloads[run->held],
                                                            writing ? PyBUF_SIMPLE : PyBUF_WRITABLE) == 0)
            run->held++;
    Py_DECREF(each);
    if (!PyErr_Occurred() && fits(run))
        return run;
failed:
    run_free(run);
    return NULL;
}

void
run_free(Run *run)
{
    for (Py_ssize_t i = 0; i < run->held; i++)
        PyBuffer_Release(&run->payloads[i]);
    PyMem_Free(run->payloads);
    Py_XDECREF(run->digests);
    Py_XDECREF(run->notes_given);
    Py_DECREF(run->slots);
    Py_DECREF(run->token);
    PyMem_Free(run);
}

static int
write_whole(int fd, const Note *note)
{
    for (Py_ssize_t done = 0; done < note->length;) {
        ssize_t more = pwrite(fd, note->bytes + done, note->length - done, note->offset + done);
        if (more == 0)
            errno = EIO;
        if (more == 0 || (more < 0 && errno != EINTR))
            return -1;
        done += more > 0 ? more : 0;
    }
    return 0;
}

static ssize_t
move_parts(const Run *run, const struct iovec *parts, int count)
{
    ssize_t done;
    do
        done = run->writing ? pwritev(run->fd, parts, count, run->offset) : preadv(run->fd, parts, count, run->offset);
    while (done < 0 && errno == EINTR);
    return done;
}

/* `memory` has the headers, a page each; the payloads stay where they are. */
static ssize_t
move_in_place(const Run *run, uint8_t *memory)
{
    struct iovec parts[3 * LONGEST];
    int count = 0;
    for (Py_ssize_t i = 0; i < run->count; i++) {
        parts[count++] = (struct iovec){memory + i * run->page, run->page};
        if (run->payloads[i].len)
            parts[count++] = (struct iovec){run->payloads[i].buf, run->payloads[i].len};
        if (pad_of(run, i))
            parts[count++] = (struct iovec){run->writing ? zeros : sink, pad_of(run, i)};
    }
    return move_parts(run, parts, count);
}

/* `memory` has whole slots, their headers first. */
static ssize_t
move_copies(const Run *run, uint8_t *memory)
{
    for (Py_ssize_t i = 0; run->writing && i < run->count; i++) {
        uint8_t *payload = memory + i * run->stride + run->page;
        memcpy(payload, run->payloads[i].buf, run->payloads[i].len);
        memset(payload + run->payloads[i].len, 0, pad_of(run, i));
    }
    struct iovec all = {memory, run->stride * run->count};
    return move_parts(run, &all, 1);
}

static bool
has_room(Scratch *scratch, size_t size)
{
    if (scratch->size < size) {
        free(scratch->at);
        scratch->size = 0;
        if (!(scratch->at = aligned_alloc(PAD, (size + PAD - 1) / PAD * PAD)))
            return false;
        memset(scratch->at, 0, size);
        scratch->size = size;
    }
    return true;
}

static ssize_t
move(Run *run, Scratch *scratch, bool copied)
{
    Py_ssize_t step = copied ? run->stride : run->page;
    if (!has_room(scratch, step * run->count)) {
        errno = ENOMEM;
        return -1;
    }
    for (Py_ssize_t i = 0; run->writing && i < run->count; i++) {
        uint8_t *header = scratch->at + i * step;
        frame_seal(header, run->fingerprint, digest_of(run, i), &run->payloads[i]);
        memset(header + HEADER, 0, run->page - HEADER);
    }
    ssize_t done = copied ? move_copies(run, scratch->at) : move_in_place(run, scratch->at);
    if (done < 0 || run->writing)
        return done;
    Py_ssize_t whole = 0;
    for (; whole < run->count && done >= whole * run->stride + run->page + run->payloads[whole].len; whole++) {
        const Py_buffer *payload = &run->payloads[whole];
        const uint8_t *header = scratch->at + whole * step;
        if (copied)
            memcpy(payload->buf, header + run->page, payload->len);
        run->defects[whole] = (char)frame_check(header, run->fingerprint, digest_of(run, whole), payload);
    }
    return whole;
}

static int
write_notes(const Run *run, Py_ssize_t from, Py_ssize_t to)
{
    for (Py_ssize_t i = from; i < to; i++)
        if (write_whole(run->index, &run->notes[i]) < 0)
            return -1;
    return 0;
}

static int
write_last(const Run *run)
{
    if (run->sync && fdatasync(run->fd) < 0)
        return -1;
    if (write_notes(run, run->notes_first, run->notes_count) < 0)
        return -1;
    return run->sync ? fdatasync(run->index) : 0;
}

void
run_move(Run *run, Scratch *scratch)
{
    bool copied = false;
    for (Py_ssize_t i = 0; run->direct && i < run->count; i++)
        copied |= pad_of(run, i) > 0;
    if (run->writing && write_notes(run, 0, run->notes_first) < 0) {
        run->error = errno;
        return;
    }
    run->done = move(run, scratch, copied);
    /* O_DIRECT may refuse payloads for where they lie. */
    if (run->done < 0 && errno == EINVAL && run->direct && !copied)
        run->done = move(run, scratch, true);
    if (run->done < 0 || (run->writing && run->done == run->stride * run->count && write_last(run) < 0))
        run->error = errno;
}
