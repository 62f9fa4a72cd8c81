/* The part of the CUDA driver's binary interface that the stand-in speaks.
 *
 * Layouts and numbers are those of cuda.h 12.9 and 13.0; test_abi.py compares them with a cuda.h when one is
 * installed. Opaque pointers are integers here: same size, and nothing can be dereferenced by mistake. */
#ifndef FAKECUDA_ABI_H
#define FAKECUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle; /* CUmemGenericAllocationHandle */
typedef uintptr_t CUcontext;
typedef uintptr_t CUstream;
typedef uintptr_t CUevent;
typedef uintptr_t CUpool; /* CUmemoryPool */

typedef struct {
    unsigned char bytes[16];
} CUuuid;

typedef struct {
    int type;
    int id;
} CUlocation; /* CUmemLocation */

typedef struct {
    int type;
    int handle_types;
    CUlocation location;
    void *win32_metadata;
    unsigned char compression;
    unsigned char rdma;
    unsigned short usage;
    unsigned char reserved[4];
} CUprop; /* CUmemAllocationProp */

typedef struct {
    CUlocation location;
    int flags;
} CUaccess; /* CUmemAccessDesc */

_Static_assert(sizeof(CUlocation) == 8, "CUmemLocation");
_Static_assert(sizeof(CUprop) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(CUaccess) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(void *) == 8, "a 64-bit system");

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801
};

enum { PINNED = 1 };
enum { POOL_RELEASE_THRESHOLD = 4 };
enum { LOCATION_DEVICE = 1, LOCATION_HOST_NUMA = 3 };
enum { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_READWRITE = 3 };
enum { HANDLE_POSIX_FD = 1, HANDLE_FABRIC = 8 };
enum { GRANULARITY_MINIMUM = 0, GRANULARITY_RECOMMENDED = 1 };
enum { STREAM_NON_BLOCKING = 1, EVENT_DISABLE_TIMING = 2 };

#endif
