/* Frames in memory, and threads that move them; see src/kvloft/_frames.pyi. */
#ifndef KVLOFT_FRAME_H
#define KVLOFT_FRAME_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

enum { NAME = 32, FIELDS = 96, HEADER = FIELDS + 8, FORMAT = 1 };
enum defect { SOUND, TRUNCATED, MAGIC, VERSION, DAMAGED_HEADER, NAMESPACE, KEY, LENGTH, CHECKSUM };

extern const uint8_t magic[8];
extern PyTypeObject MoverType;

/* Whether an object is a fingerprint or digest; if not, ValueError is set. */
bool is_name(PyObject *object);

/* Python: descriptor, bytes, whether to take or leave them; which of them that did. */
PyObject *lock_bytes(PyObject *module, PyObject *args);

/* These two need no interpreter. */
void frame_seal(uint8_t *header, const char *fingerprint, const char *digest, const Py_buffer *payload);
enum defect frame_check(const uint8_t *header, const char *fingerprint, const char *digest, const Py_buffer *payload);

#endif
