/* Segments of chains, and what is known of their use. Times are numbers of requests. See src/kvloft/_table.pyi. */
#ifndef KVLOFT_SEGMENTS_H
#define KVLOFT_SEGMENTS_H

#include "keys.h"

typedef struct Ages Ages;
typedef struct Ghosts Ghosts;

/* Attributes are Python's to set: what is an object here may be any, or none. */
typedef struct {
    PyObject_HEAD
    PyObject *keys, *parent, *owner;
    long long number, live;
} Run;

typedef struct AgedRun {
    Run run;
    PyObject *origin;
    long long last, use, stamp, reads, turn, branches, branches_reused;
    int kind;
    char ends, committed;
    Ages *ages;     /* the leaves among which it is, or NULL; */
    uint32_t queue; /* in which queue, */
    uint32_t place; /* and where in that */
    Ghosts *ghosts; /* those among which it is, or NULL; */
    struct AgedRun *older, *newer;
    int64_t *hashes; /* of its evicted blocks, the last of its chain first, */
    uint32_t evicted; /* how many these are, */
    uint32_t room;    /* and could be */
} AgedRun;

extern PyTypeObject RunType, AgedRunType, AgesType, UsesType, GhostsType, ShadowType;

/* Resident blocks; TypeError and -1 if they have become something else. */
Py_ssize_t resident_blocks(const Run *run);

/* `copy.deepcopy` of it. */
PyObject *deep_copy(PyObject *given, PyObject *memo);

/* The array, with twice the room, which is noted; MemoryError and NULL if there is no memory for it, then it is as it was. */
void *doubled(void *array, Py_ssize_t *room, size_t size);

/* Given an argument, that segment; TypeError and NULL if it is none. */
AgedRun *as_aged_run(PyObject *given);

/* Ages at which bins end; the last has no end. */
typedef struct {
    long long *ends;
    int bins;
} Bins;

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

typedef struct Queue Queue;

struct Ages {
    PyObject_HEAD
    long long clock;
    long long until; /* the earliest of all queues' */
    Bins bins;
    int classes, stages;
    int *stage_of; /* [bins] */
    double *index; /* [classes, bins], as it was given, */
    double *rank;  /* and so that within a stage it is at most that of younger ages */
    Queue *queues; /* [classes, stages] */
};

int ages_settle(Ages *self, AgedRun *segment); /* it is a leaf now, of its class and age, or none */

/* The bin of a time now. */
static inline int
bin_at(const Ages *self, long long last)
{
    return bin_of(&self->bins, (long long)((unsigned long long)self->clock - (unsigned long long)last));
}

#endif
