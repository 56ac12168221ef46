/* Segments of chains, and what is known of their use. Times are numbers of requests. See src/kvloft/_table.pyi. */
#ifndef KVLOFT_SEGMENTS_H
#define KVLOFT_SEGMENTS_H

#include "keys.h"

typedef struct Ages Ages;

/* Attributes are Python's to set: what is an object here may be any, or none. */
typedef struct {
    PyObject_HEAD
    PyObject *keys, *parent, *owner;
    long long number, live;
} Run;

typedef struct {
    Run run;
    PyObject *ghost, *origin;
    long long last, use, reads, turn, branches, branches_reused;
    int kind;
    char ends, committed;
    Ages *ages;     /* the leaves among which it is, or NULL; */
    uint32_t queue; /* in which queue, */
    uint32_t place; /* and where in that */
} AgedRun;

extern PyTypeObject RunType, AgedRunType, AgesType, UsesType;

/* Blocks, resident and evicted; TypeError and -1 if they have become something else. */
Py_ssize_t resident_blocks(const Run *run);
Py_ssize_t evicted_blocks(const AgedRun *run);

/* Given an argument, that segment; TypeError and NULL if it is none. */
AgedRun *as_aged_run(PyObject *given);

/* Ages at which bins end; the last has no end. */
typedef struct {
    long long *ends;
    int bins;
} Bins;

int bins_init(Bins *bins, PyObject *edges); /* ascending and positive, or ValueError */
int bins_copy(Bins *bins, const Bins *from);
PyObject *bins_edges(const Bins *bins); /* a tuple */

/* The bin of an age, negative ones included. */
static inline int
bin_of(const Bins *bins, long long age)
{
    int low = 0, high = bins->bins - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (age < bins->ends[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

#endif
