/* A run: frames in neighbouring slots of a file, to be read or written. */
#ifndef KVLOFT_RUN_H
#define KVLOFT_RUN_H
#include "frame.h"

enum { LONGEST = 256, NOTES = 3 };

typedef struct {
    long long offset;
    const char *bytes;
    Py_ssize_t length;
} Note;

typedef struct run {
    struct run *next;
    PyObject *token, *slots, *notes_given; /* whatever keeps alive what is below */
    const char *fingerprint;
    PyObject *digests;
    Py_buffer *payloads;
    Py_ssize_t count, held, page, stride;
    Note notes[NOTES];
    Py_ssize_t notes_count, notes_first; /* how many of them go before the frames */
    long long offset;
    int fd, index, direct, sync, kind;
    bool writing;
    /* How it ended: bytes written or frames that came whole, and the system's error number, 0 if there was none. */
    Py_ssize_t done;
    int error;
    char defects[LONGEST];
} Run;

/* Memory of one thread for headers, or for whole slots where the payloads cannot be moved from and to where they lie. */
typedef struct {
    uint8_t *at;
    size_t size;
} Scratch;

/* Takes hold of all memory that is to be moved; NULL with an exception if something does not fit. */
Run *run_new(PyObject *token, PyObject *slots, bool writing);
void run_free(Run *run);

/* Needs no interpreter. */
void run_move(Run *run, Scratch *scratch);

#endif
