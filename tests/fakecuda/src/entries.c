/* The entry points, and cuGetProcAddress_v2: the only one that the bindings look up by name. */
#include <string.h>

#include "state.h"

#define CALL(name, needs, target, parameters, arguments)                             \
    static CUresult entry_##name parameters {                                        \
        call_enter(CALL_##name);                                                     \
        CUresult result = call_begin(CALL_##name, needs, target);                    \
        return call_end(CALL_##name, result != OK ? result : impl_##name arguments); \
    }
#include "calls.def"
#undef CALL

typedef CUresult (*entry)(void);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wcast-function-type"
static const entry entries[CALL_COUNT] = {
#define CALL(name, needs, target, parameters, arguments) (entry)entry_##name,
#include "calls.def"
#undef CALL
};
#pragma GCC diagnostic pop

enum { SYMBOL_FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_TOO_NEW = 2 };

__attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                                                    unsigned long long flags, int *status);

/* Names are unversioned. The bindings pass status NULL and ignore the result, so *function says it all. */
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags, int *status) {
    int ignored;
    if (status == NULL) status = &ignored;
    if (symbol == NULL || function == NULL || flags > 2) return INVALID_VALUE;
    *function = NULL;
    state_lock();
    unsigned long long newest = g.settings.driver_version;
    state_unlock();
    if (version < 0 || (unsigned long long)version > newest) {
        *status = VERSION_TOO_NEW;
        return INVALID_VALUE;
    }
    *status = SYMBOL_FOUND;
    if (strcmp(symbol, "cuGetProcAddress") == 0) {
        CUresult (*self)(const char *, void **, int, unsigned long long, int *) = cuGetProcAddress_v2;
        memcpy(function, &self, sizeof self);
        return OK;
    }
    int call = call_by_name(symbol, strlen(symbol));
    if (call < 0 || g.settings.missing[call]) {
        *status = SYMBOL_NOT_FOUND;
        return NOT_FOUND;
    }
    memcpy(function, &entries[call], sizeof entries[call]);
    return OK;
}
