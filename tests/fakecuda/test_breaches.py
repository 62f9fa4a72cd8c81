"""Each rule of README.md broken on purpose: refused with INVALID_VALUE and reported by its name."""

import pytest
from fakecuda.rig import GRANULE, GRANULES, driver

INVALID_VALUE = 1
NOWHERE = 1 << 46


def hold(rig, count=1):
    """A committed run at granule 0."""
    rig.commit(0, count)
    return rig


def with_field(rig, name, value):
    """A cuMemCreate whose properties have one field changed."""
    properties = driver.CUmemAllocationProp()
    properties.type = rig.properties.type
    properties.location = rig.properties.location
    if name in ("usage", "gpuDirectRDMACapable"):
        setattr(properties.allocFlags, name, value)
    elif name == "location":
        properties.location.type, properties.location.id = value
    else:
        setattr(properties, name, value)
    return rig.code("cuMemCreate", GRANULE, properties, 0)


def overlap_of_two(rig):
    handle = rig.create(2)
    code = rig.map(1, handle, 2)
    rig.ok("cuMemRelease", handle)
    return code


def release_twice(rig):
    handle = rig.create()
    rig.ok("cuMemRelease", handle)
    return rig.code("cuMemRelease", handle)


def map_after_release(rig):
    handle = rig.create()
    rig.ok("cuMemRelease", handle)
    return rig.map(0, handle)


def map_shorter(rig):
    handle = rig.create(2)
    code = rig.map(0, handle, 1)
    rig.ok("cuMemRelease", handle)
    return code


def map_with(rig, address, offset=0, flags=0):
    handle = rig.create()
    code = rig.code("cuMemMap", address, GRANULE, offset, handle, flags)
    rig.ok("cuMemRelease", handle)
    return code


def export_unasked(rig):
    handle = rig.create()
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    code = rig.code("cuMemExportToShareableHandle", handle, kind, 0)
    rig.ok("cuMemRelease", handle)
    return code


def part_of_a_mapping(rig, call):
    handle = rig.create(4)
    assert rig.map(0, handle, 4) == 0
    rig.ok("cuMemRelease", handle)
    return call(rig)


def from_the_middle_on(rig):
    rig.commit(4, 2)
    return rig.unmap(2, 4)


HOST = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
ALL = GRANULES * GRANULE

BREACHES = {
    "reserve, odd size": ("R1", lambda r: r.code("cuMemAddressReserve", GRANULE + 4096, 0, 0, 0)),
    "reserve nothing": ("R1", lambda r: r.code("cuMemAddressReserve", 0, 0, 0, 0)),
    "reserve, odd alignment": ("R1", lambda r: r.code("cuMemAddressReserve", GRANULE, 3, 0, 0)),
    "reserve, flags": ("R1", lambda r: r.code("cuMemAddressReserve", GRANULE, 0, 0, 1)),
    "reserve, odd hint": ("R2", lambda r: r.code("cuMemAddressReserve", GRANULE, 0, GRANULE, 0)),
    "free, short": ("R3", lambda r: r.code("cuMemAddressFree", r.base, ALL - GRANULE)),
    "free, long": ("R3", lambda r: r.code("cuMemAddressFree", r.base, ALL + GRANULE)),
    "free, inside": ("R3", lambda r: r.code("cuMemAddressFree", r.at(1), ALL - GRANULE)),
    "free, unknown": ("R3", lambda r: r.code("cuMemAddressFree", NOWHERE, GRANULE)),
    "free, mapped": ("R4", lambda r: hold(r).code("cuMemAddressFree", r.base, ALL)),
    "create, odd size": ("C1", lambda r: r.code("cuMemCreate", 4096, r.properties, 0)),
    "create nothing": ("C1", lambda r: r.code("cuMemCreate", 0, r.properties, 0)),
    "create, flags": ("C1", lambda r: r.code("cuMemCreate", GRANULE, r.properties, 1)),
    "create, usage": ("C1", lambda r: with_field(r, "usage", 1)),
    "create, rdma": ("C1", lambda r: with_field(r, "gpuDirectRDMACapable", 1)),
    "create, no properties": ("C1", lambda r: r.code("cuMemCreate", GRANULE, None, 0)),
    "create on the host": ("C2", lambda r: with_field(r, "location", (HOST, 0))),
    "create on no device": ("C2", lambda r: with_field(r, "location", (DEVICE, 2))),
    "export unasked": ("C3", export_unasked),
    "retain nothing": ("H2", lambda r: r.code("cuMemRetainAllocationHandle", r.base)),
    "release twice": ("H3", release_twice),
    "release no handle": ("H3", lambda r: r.code("cuMemRelease", 77)),
    "map after release": ("H3", map_after_release),
    "properties of no handle": (
        "H3",
        lambda r: r.code("cuMemGetAllocationPropertiesFromHandle", 1),
    ),
    "map, shorter": ("M1", map_shorter),
    "map, offset": ("M1", lambda r: map_with(r, r.base, offset=GRANULE)),
    "map, flags": ("M1", lambda r: map_with(r, r.base, flags=1)),
    "map, misaligned": ("M2", lambda r: map_with(r, r.base + 4096)),
    "map, outside": ("M2", lambda r: map_with(r, NOWHERE)),
    "map, past the end": ("M2", lambda r: map_with(r, r.base + ALL)),
    "map twice": ("M2", lambda r: map_with(hold(r), r.base)),
    "map over the next": ("M2", lambda r: (r.commit(2), overlap_of_two(r))[1]),
    "map over the last": ("M2", lambda r: (r.commit(1), overlap_of_two(r))[1]),
    "access, hole": ("A2", lambda r: hold(r).access(0, 2)),
    "access, part": ("A2", lambda r: part_of_a_mapping(r, lambda rig: rig.access(1))),
    "access, none given": ("A2", lambda r: hold(r).code("cuMemSetAccess", r.base, GRANULE, [], 0)),
    "access, no device": ("A2", lambda r: hold(r).access(0, device=2)),
    "unmap nothing": ("U1", lambda r: r.code("cuMemUnmap", r.base, 0)),
    "unmap outside": ("U1", lambda r: r.code("cuMemUnmap", NOWHERE, GRANULE)),
    "unmap, wrap": ("U1", lambda r: hold(r).code("cuMemUnmap", r.base, (1 << 64) - GRANULE)),
    "unmap the start": ("U1", lambda r: part_of_a_mapping(r, lambda rig: rig.unmap(0, 2))),
    "unmap the end": ("U1", lambda r: part_of_a_mapping(r, lambda rig: rig.unmap(2, 2))),
    "unmap from the middle on": ("U1", lambda r: part_of_a_mapping(r, from_the_middle_on)),
    "unmap a hole": ("U2", lambda r: (r.commit(0), r.commit(2), r.unmap(0, 3))[2]),
    "unmap twice": ("U2", lambda r: (r.commit(0), r.unmap(0), r.unmap(0))[2]),
    "host address": ("P1", lambda r: hold(r).code("cuMemcpyDtoH", 8, r.base, 8)),
    "device as host": ("P1", lambda r: hold(r).code("cuMemcpyHtoD", r.base, r.base, 8)),
    "copy over itself": ("P2", lambda r: hold(r).code("cuMemcpyDtoD", r.base + 1, r.base, 8)),
    "fill, misaligned": ("P3", lambda r: hold(r).code("cuMemsetD32", r.base + 2, 0, 1)),
}


@pytest.mark.parametrize(("rule", "call"), BREACHES.values(), ids=BREACHES)
def test_a_breach_is_refused_and_reported(rig, fakecuda, rule, call):
    assert call(rig) == INVALID_VALUE
    broken = fakecuda.forgive()
    assert [text.split()[0] for text in broken] == [rule]
