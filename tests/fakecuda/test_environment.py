"""The stand-in through the environment: settings, typing mistakes, and the report at exit."""

import pytest

BIND = "from cuda.bindings import driver as d\n"


def test_a_new_process_finds_the_stand_in_and_leaves_a_report(python_with_fakecuda):
    done = python_with_fakecuda(
        BIND + "d.cuInit(0); print(d.cuDeviceGetCount()[1], d.cuDeviceGetName(64, 1)[1])", devices=2
    )
    assert done.stdout.startswith("2 ")
    assert "stand-in GPU 1 (no hardware)" in done.stdout
    assert done.reports[0]["calls"]["cuInit"] == {"calls": 1, "failures": 0}
    done.assert_clean()


def test_no_device_answers_as_a_driver_without_one(python_with_fakecuda):
    code = BIND + "print([int(r) for r in (d.cuInit(0)[0], d.cuDeviceGetCount()[0])])"
    assert python_with_fakecuda(code, devices=0).stdout == "[100, 3]\n"


def test_an_empty_list_of_visible_devices_hides_them(python_with_fakecuda):
    code = (
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n" + BIND + "print(int(d.cuInit(0)[0]))"
    )
    assert python_with_fakecuda(code).stdout == "100\n"


def test_a_mistake_in_a_setting_aborts_with_its_name(python_with_fakecuda):
    done = python_with_fakecuda(BIND + "print(d.cuInit(0))", devcies="1")
    assert done.returncode < 0
    assert done.stdout == ""
    assert "fakecuda: FAKECUDA_DEVCIES=1' is not a setting" in done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {"devcies": "1"},
        {"devices": "9"},
        {"devices": ""},
        {"memory": "1GB"},
        {"memory": "16777216TiB"},
        {"granularity": "3MiB"},
        {"granularity": "2MiB", "granularity_rec": "64KiB"},
        {"granularity_of": "1:3MiB"},
        {"granularity_of": "1:64KiB"},
        {"granularity_of": "8:4MiB"},
        {"attributes": "20"},
        {"attributes": "20@8=1"},
        {"bad_copy": "2"},
        {"fail": "cuMemMap"},
        {"fail": "cuMemMaps:1"},
        {"fail": "cuMemMap:0"},
        {"fail": "cuMemMap:1=x"},
        {"fail": "cuMemMap:1;cuMemUnmap:1"},
        {"fail": "cuMemMap@8:1"},
        {"fail": "cuMemAddressReserve@0:1"},  # addresses are of no device
        {"vmm": "yes"},
    ],
)
def test_a_mistake_in_a_reset_is_an_error_and_changes_nothing(fakecuda, settings):
    fakecuda.reset(devices=3)
    with pytest.raises(ValueError, match=r"FAIL|GRANULARITY|BAD_COPY|is not a setting"):
        fakecuda.reset(**settings)
    from cuda.bindings import driver as d

    assert d.cuInit(0)[0] == 0
    assert d.cuDeviceGetCount()[1] == 3


def test_functions_newer_than_the_driver_are_not_handed_out(python_with_fakecuda):
    code = BIND + "d.cuInit(0)\ntry: d.cuMemRelease(0)\nexcept RuntimeError as e: print(e)"
    assert "cuMemRelease" in python_with_fakecuda(code, driver_version=10010).stdout
    assert python_with_fakecuda(code, driver_version=10020).stdout == ""


def test_the_per_thread_default_stream_mode_of_the_bindings_works(python_with_fakecuda):
    code = (
        "import os; os.environ['CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM'] = '1'\n"
        + BIND
        + "print(int(d.cuInit(0)[0]), int(d.cuStreamQuery(0)[0]))"
    )
    assert python_with_fakecuda(code).stdout == "0 201\n"


def test_a_forked_child_may_not_use_the_driver_and_writes_no_report(python_with_fakecuda):
    code = BIND + (
        "import os, sys\nd.cuInit(0)\n"
        "if os.fork() == 0:\n    sys.exit(int(d.cuDeviceGetCount()[0]))\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), int(d.cuDeviceGetCount()[0]))"
    )
    done = python_with_fakecuda(code)
    assert done.stdout == "3 0\n"
    assert len(done.reports) == 1


def test_a_child_forked_before_the_driver_starts_may_use_it(python_with_fakecuda):
    code = BIND + (
        "import os\nd.cuDriverGetVersion()\n"
        "if os.fork() == 0:\n    os._exit(10 + int(d.cuInit(0)[0]))\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))"
    )
    assert python_with_fakecuda(code).stdout == "10\n"
