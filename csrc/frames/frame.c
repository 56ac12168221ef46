/* `kvloft._frames`: the frame's format, and the module. */
#include "run.h"
#include "xxh3.h"

const uint8_t magic[8] = "KVLOFT\r\n";

static void
put(uint8_t *at, uint64_t number, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(number >> 8 * i);
}

static uint64_t
take(const uint8_t *at, int bytes)
{
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number |= (uint64_t)at[i] << 8 * i;
    return number;
}

void
frame_seal(uint8_t *header, const char *fingerprint, const char *digest, const Py_buffer *payload)
{
    memcpy(header, magic, sizeof magic);
    put(header + 8, FORMAT, 2);
    put(header + 10, HEADER, 2);
    put(header + 12, 0, 4);
    memcpy(header + 16, fingerprint, NAME);
    memcpy(header + 48, digest, NAME);
    put(header + 80, payload->len, 8);
    put(header + 88, xxh3_64(payload->buf, payload->len), 8);
    put(header + FIELDS, xxh3_64(header, FIELDS), 8);
}

/* The cheap questions come first, so that the reason is the most telling one: a foreign block is foreign, not corrupt. */
enum defect
frame_check(const uint8_t *header, const char *fingerprint, const char *digest, const Py_buffer *payload)
{
    if (memcmp(header, magic, sizeof magic))
        return MAGIC;
    if (take(header + 8, 2) != FORMAT || take(header + 10, 2) != HEADER || take(header + 12, 4))
        return VERSION;
    if (take(header + FIELDS, 8) != xxh3_64(header, FIELDS))
        return DAMAGED_HEADER;
    if (memcmp(header + 16, fingerprint, NAME))
        return NAMESPACE;
    if (memcmp(header + 48, digest, NAME))
        return KEY;
    if (take(header + 80, 8) != (uint64_t)payload->len)
        return LENGTH;
    return take(header + 88, 8) == xxh3_64(payload->buf, payload->len) ? SOUND : CHECKSUM;
}

bool
is_name(PyObject *object)
{
    if (PyBytes_Check(object) && PyBytes_GET_SIZE(object) == NAME)
        return true;
    PyErr_Format(PyExc_ValueError, "a fingerprint or digest is %d bytes, not %R", NAME, object);
    return false;
}

static PyObject *
seal(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *fingerprint, *digest;
    Py_buffer payload;
    if (!PyArg_ParseTuple(args, "OOy*", &fingerprint, &digest, &payload))
        return NULL;
    PyObject *header = is_name(fingerprint) && is_name(digest) ? PyBytes_FromStringAndSize(NULL, HEADER) : NULL;
    if (header) {
        uint8_t *at = (uint8_t *)PyBytes_AS_STRING(header);
        Py_BEGIN_ALLOW_THREADS
        frame_seal(at, PyBytes_AS_STRING(fingerprint), PyBytes_AS_STRING(digest), &payload);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&payload);
    return header;
}

static PyObject *
check(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *fingerprint, *digest;
    Py_buffer header, payload;
    int defect = -1;
    if (!PyArg_ParseTuple(args, "y*y*OO", &header, &payload, &fingerprint, &digest))
        return NULL;
    if (is_name(fingerprint) && is_name(digest)) {
        const char *space = PyBytes_AS_STRING(fingerprint), *key = PyBytes_AS_STRING(digest);
        Py_BEGIN_ALLOW_THREADS
        defect = header.len < HEADER ? TRUNCATED : frame_check(header.buf, space, key, &payload);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&header);
    PyBuffer_Release(&payload);
    return defect < 0 ? NULL : PyLong_FromLong(defect);
}

static PyMethodDef functions[] = {
    {"seal", seal, METH_VARARGS, NULL},
    {"check", check, METH_VARARGS, NULL},
    {"lock_bytes", lock_bytes, METH_VARARGS, NULL},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_frames",
    .m_methods = functions,
    .m_size = 0,
};

PyMODINIT_FUNC
PyInit__frames(void)
{
    if (PyType_Ready(&MoverType) < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    PyObject *start = PyBytes_FromStringAndSize((const char *)magic, sizeof magic);
    if (made && (!start || PyModule_AddObjectRef(made, "MAGIC", start) < 0 ||
                 PyModule_AddIntConstant(made, "VERSION", FORMAT) < 0 ||
                 PyModule_AddIntConstant(made, "HEADER_BYTES", HEADER) < 0 ||
                 PyModule_AddIntConstant(made, "LONGEST", LONGEST) < 0 ||
                 PyModule_AddObjectRef(made, "Mover", (PyObject *)&MoverType) < 0))
        Py_CLEAR(made);
    Py_XDECREF(start);
    return made;
}
