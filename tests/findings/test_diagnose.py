"""What `lumos.diagnose` finds in drawn jobs, and what it is worth; times in µs."""

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from tests.drawn_rank import DrawnRank

import lumos
from lumos.errors import LumosError
from lumos.findings.case import case_of
from lumos.findings.finding import FindingCode

US = 1e-6
EXAMPLES = Path(__file__).parents[2] / "examples"
TRACES = Path(os.environ.get("LUMOS_TRACES", "none"))
#: Public recordings that are examined in a few seconds, and all others.
QUICK = "resnet-ddp-a100 resnet-ddp-mi300x dlrm-8xv100 mi210-gpu-only vgg13-h100 straggler-8gpu pipeline-8gpu dlrm-a100-rank3"
SLOW = "resnet-v100 resnet50-v100-old-schema resnet-2080ti switch-moe-a100 critical-path incomplete odd h100-inference mi300-vllm-graph"
RECORDINGS = [
    *(folder for parent in ("faults", "foreign") for folder in sorted((EXAMPLES / parent).iterdir()) if folder.is_dir()),
    *(TRACES / name for name in QUICK.split() if TRACES.is_dir()),
    *(pytest.param(path, marks=pytest.mark.slow) for name in SLOW.split() for path in sorted((TRACES / name).glob("[!e]*.json.gz"))),
]
#: What every rank of a CPU job does: 400 + 10 × 50 = 900 µs; a step then takes 950.
USUAL = [("aten::a", 400), *[("aten::b", 50)] * 10]


def first(path):
    """The first finding, after a look at what holds for all findings."""
    found = lumos.diagnose(path)
    assert found.trust.grade == "sound"
    worths = [each.worth_after_s for each in found.findings]
    assert worths == sorted(worths, reverse=True) and sum(worths) <= found.step_time_s
    for each in found.findings:
        assert each.worth_low_s <= each.worth_s <= each.worth_high_s
        assert each.command.startswith("lumos ") and each.evidence and each.fix
    return found.findings[0]


def answered(job, command):
    """What `lumos.whatif` answers to the words of a command, as a finding has it."""
    words, changes = shlex.split(command.removesuffix(" --force"))[2:], {"scale": {}, "rank_slowdown": {}, "drop": [], "fuse": []}
    while not words[0].startswith("--"):
        words.pop(0)
    for option, value in zip(words[::2], words[1::2], strict=True):
        key, _, after = value.rpartition("=")
        match option:
            case "--set":
                changes[key] = after
            case "--scale":
                changes["scale"][key] = after
            case "--rank-slowdown":
                changes["rank_slowdown"][int(key)] = after
            case _:
                changes[option[2:]].append(value)
    found = lumos.whatif(job, force=True, **changes)
    base, after = found.base.step_time_s, found.outcome
    return *(base - each for each in (after.step_time_s, after.step_time_high_s, after.step_time_low_s)), found.trust.grade


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_a_finding_is_what_its_command_answers_to_the_digit(path):
    found = lumos.diagnose(read := lumos.read(path), force=True).findings
    assert len({each.command for each in found}) == len(found)
    for each in found:
        assert (each.worth_s, each.worth_low_s, each.worth_high_s, each.grade) == answered(read, each.command), each.command


@pytest.mark.parametrize("name", ["extra-work", "outlier"])
def test_what_a_rank_costs_is_what_the_what_if_of_it_answers(name):
    of_rank = lumos.stragglers(path := EXAMPLES / "faults" / name).by_rank[1]
    found = lumos.whatif(path, scale={"rank1:*": "peers"})
    assert of_rank.worth_ns == round(1e9 * (found.base.step_time_s - found.outcome.step_time_s))


def codes(path):
    return [each.code for each in lumos.diagnose(path).findings]


def test_nothing_is_found_in_a_device_that_works_all_the_time_and_in_ranks_that_do_the_same(job, gpu, cpu):
    found = lumos.diagnose(job(gpu()))
    assert (found.findings, found.step_time_s, found.basis) == ((), pytest.approx(1000 * US), "period")
    assert "nothing to fix found" in repr(found)
    assert codes(job(*cpu(USUAL, USUAL, USUAL))) == []


def test_work_that_only_one_rank_does(job, cpu):
    found = first(job(*cpu(USUAL, [*USUAL, ("aten::bmm", 300)], USUAL)))
    assert (found.code, found.where.ranks, found.where.task) == (FindingCode.EXTRA_WORK, (1,), "aten::bmm")
    assert found.where.start_ns == 900_000 and found.where.step.startswith("ProfilerStep#")
    assert found.worth_s == pytest.approx(300 * US)
    assert "300.0 µs a step more than its peers" in found.evidence


def test_a_rank_that_is_slower(job, cpu):
    found = first(job(*cpu(USUAL, [("aten::a", 400), *[("aten::b", 80)] * 10], USUAL)))
    assert (found.code, found.where.ranks, found.worth_s) == (FindingCode.SLOW_RANK, (1,), pytest.approx(300 * US))
    load, longer = ("enumerate(DataLoader)#It.__next__", 100), ("enumerate(DataLoader)#It.__next__", 180)  # that of 80 is not most of it
    found = first(job(*cpu([load, *USUAL], [longer, ("aten::a", 400), *[("aten::b", 70)] * 10], [load, *USUAL])))
    assert (found.code, found.where.ranks, found.worth_s) == (FindingCode.SLOW_RANK, (1,), pytest.approx(280 * US))


def test_a_rank_with_larger_inputs(job, cpu):
    """Rank 2 takes half as long again, 1350, for inputs that are half as large again."""

    def works(rows, factor):
        shapes = {"Input Dims": [[rows, 4]]}
        return [("aten::a", 400 * factor, shapes), *[("aten::b", 50 * factor, shapes)] * 10]

    found = first(job(*cpu(works(8, 1), works(8, 1), works(12, 1.5))))
    assert (found.code, found.where.ranks, found.worth_s) == (FindingCode.UNEVEN_INPUT, (2,), pytest.approx(450 * US))
    assert "aten::b of [[12,4]], its peers [[8,4]]" in found.evidence


@pytest.mark.parametrize("name", ["enumerate(DataLoader)#It.__next__", "## data_load ##"])
def test_the_loader_of_one_rank(job, cpu, name):
    """What the loader takes is the loader's: no other finding names it again."""
    path = job(*cpu(USUAL, [(name, 300), *USUAL], USUAL))
    found = first(path)
    assert (found.code, found.where.ranks, found.worth_s) == (FindingCode.DATA_LOADER, (1,), pytest.approx(300 * US))
    assert codes(path) == [FindingCode.DATA_LOADER]


def test_communication_that_nothing_hides(job, cpu):
    found = first(job(*cpu(USUAL, USUAL, USUAL, meet=500)))
    assert (found.code, found.where.ranks, found.worth_s) == (FindingCode.EXPOSED_COMMUNICATION, (0, 1, 2), pytest.approx(500 * US))
    assert found.command.endswith("--scale 'gloo:all_reduce*=0'")
    assert "1 all-reduce a step, mostly of 256 B in 500.0 µs" in found.evidence


def test_devices_that_wait_for_the_cpu(job, gpu):
    """60 kernels of 3 µs, launched every 10: the devices idle 820 of 1000 µs, and graphs save most of it."""
    found = first(job(gpu(time=3)))
    assert found.code is FindingCode.LAUNCH_BOUND and found.command.endswith("--set cuda_graphs=on")
    assert "idle 820.0 µs a step" in found.evidence and "60 kernels a step and rank, median 3.00 µs" in found.evidence
    assert 700 * US < found.worth_s < 820 * US


def test_one_long_call_at_the_start_is_not_a_matter_of_launches(job, gpu):
    """One step: a call of 2000 µs, which sets the device up, and 60 operators of 10 µs with kernels of 3 µs."""
    for loads in (True, False):
        rank = DrawnRank()
        rank.step(0, 0, 2920)
        rank.operator("aten::empty", 0, 10 if loads else 2000)
        rank.range("enumerate(DataLoader)#" if loads else "set up", 10, 1990)
        for i in range(60):
            now = 2000 + 15 * i
            rank.operator("aten::mm", now, 10)
            rank.call("cudaLaunchKernel", now + 2, 2, ("gemm_kernel", now + 6, 3))
        rank.call("cudaDeviceSynchronize", 2900, 10)
        found = first(job(rank))
        assert (found.code is FindingCode.DATA_LOADER) == loads
    assert (found.code, found.where.task, found.worth_s) == (FindingCode.LONG_CALL, "aten::empty", pytest.approx(2000 * US))
    assert "record later steps" in found.fix
    assert first(job(gpu(steps=1, time=3))).code == FindingCode.LAUNCH_BOUND  # many short pieces of one name are no long one


def test_a_cpu_that_gets_too_little_of_its_processor(job, cpu):
    """Rank 1 takes 1125 µs for what its peers do in 900, and waits a fifth of its step for a processor: that is why it is slow."""
    ranks = cpu(USUAL, [("aten::a", 500), *[("aten::b", 62.5)] * 10], USUAL)
    for rank, waited in zip(ranks, (1_000, 220_000, 0), strict=True):
        rank.host = [got(step, 1_100_000 - waited, waited) for step in range(5)]
    found = first(folder := job(*ranks))
    assert (found.code, found.where.ranks, found.worth_s) == (FindingCode.STARVED, (1,), pytest.approx(225 * US))
    assert "ran 880.0 µs a step, and were ready for 220.0 µs more" in found.evidence and found.evidence.endswith("it may use 2 cores")
    assert len(lumos.diagnose(folder).findings) == 1  # that it is slower than its peers is no finding beside it


def got(step, ran, waited):
    """What `lumos.collect` notes of a step, ns. The waiting of a thread without operators, beside the one that trains, is nobody's."""
    return {"step": step, "ran_ns": {"1": ran, "9": 0}, "waited_ns": {"1": waited, "9": 900_000}, "cores": 2}


def test_steps_that_wait_for_a_processor_are_no_slow_steps_beside_that(job, cpu):
    """Steps of 950 µs, of which the fourth has 600 more in which no processor ran it: a mean of 1100 over four periods, 150 too many."""
    (rank,) = cpu(USUAL)
    for row in rank.rows:
        row["ts"] += 600 if row["ts"] >= 3 * 950 + 20 else 0
    rank.host = [got(step, 900_000, 600_000 if step == 3 else 0) for step in range(5)]
    assert codes(job(rank)) == [FindingCode.STARVED]
    rank.host = []
    assert codes(job(rank)) == [FindingCode.SLOW_STEPS]


def test_operators_that_stall_now_and_then(job):
    """60 operators of 10 µs a step, half of them without shapes, of which four take 250 µs longer: all steps are equally long, and there is
    no other rank. That the last piece of the linear takes 200 µs, and those before it 5, is no stall: it does so in every step."""
    rank = DrawnRank()
    for step in range(5):
        now, shapes = 1890 * step, {"Input Dims": [[4, 4], [4, 4]]}
        rank.step(step, now, 1890)
        rank.operator("aten::linear", now, 240, **shapes)
        for i in range(3):
            rank.operator("aten::t", now + 5 + 10 * i, 5, **shapes)
        now += 240
        for i in range(60):
            rank.operator("aten::mm", now, time := 260 if i % 15 == step else 10, **(shapes if i % 2 else {}))
            rank.call("cudaLaunchKernel", now + 2, 2, ("gemm_kernel", now + 6, 3))
            now += time
        rank.call("cudaDeviceSynchronize", now, 10)
    found = first(job(rank))
    assert (found.code, found.where.task, found.worth_s) == (FindingCode.HOST_STALLS, "aten::mm", pytest.approx(1000 * US))
    for step in range(5):
        rank.range("## data_load ##", 1890 * step + 240, 1600)
    assert FindingCode.HOST_STALLS not in codes(job(rank))  # they are the loader's


def test_the_worth_of_host_time_that_was_emulated_reaches_as_far_as_hosts_differ(job, gpu):
    """The CPU sets the step of 1000 µs. A tenth of its work is worth 100, on hosts that take 0.42 to 4.3 times as long 42 to 430."""
    file = job(gpu(time=1)) / "rank0.json"
    for told, low, high in (({}, 900, 900), ({"lumos": {"origin": "emulated, then changed", "grade": "limited"}}, 570, 958)):
        file.write_text(json.dumps(json.loads(file.read_text()) | told))
        after = lumos.whatif(file, scale={"cpu:*": 0.9}).outcome
        found = after.step_time_s, after.step_time_low_s, after.step_time_high_s
        assert found == pytest.approx((900 * US, low * US, high * US), rel=0.01)


def test_elementwise_kernels_that_could_be_one(job, gpu):
    """Two of three kernels of 16 µs are elementwise and neighbours: 20 of 40 go, 320 µs, up to 1 µs of the device's first launch."""
    names = ("vectorized_elementwise_kernel<4>", "elementwise_kernel", "gemm_kernel")
    found = first(job(gpu(name=lambda i: names[i % 3])))
    assert (found.code, found.worth_s) == (FindingCode.FUSIBLE_KERNELS, pytest.approx(320 * US, abs=1.1 * US))


def test_calls_that_wait_in_the_middle_of_a_step(job):
    """60 operators of 20 µs launch a kernel of 8 µs, and wait from 5 to 15 µs for it. Without waiting they take 10 µs each."""
    rank = DrawnRank()
    for step in range(5):
        rank.step(step, 1200 * step, 1200)
        for i in range(60):
            now = 1200 * step + 20 * i
            rank.operator("aten::item", now, 20)
            rank.call("cudaLaunchKernel", now + 2, 2, ("gemm_kernel", now + 6, 8))
            rank.call("cudaStreamSynchronize", now + 5, 10)
    found = next(each for each in lumos.diagnose(job(rank)).findings if each.code is FindingCode.BLOCKING_CALLS)
    assert found.worth_s == pytest.approx(60 * 10 * US)
    assert found.title == "the CPU waits for the device, mostly in aten::item (cudaStreamSynchronize)"
    assert "a step and rank: 60 calls in aten::item (cudaStreamSynchronize)" in found.evidence


def test_a_thread_that_waits_for_another_does_not_wait_for_the_device():
    """The backward thread of this recording ends a step in AccumulateGrad, and then waits 10 ms for the next: no call of the device."""
    found = next(each for each in lumos.diagnose(EXAMPLES / "foreign" / "DLRM__tf32").findings if each.code is FindingCode.BLOCKING_CALLS)
    assert found.title == "the CPU waits for the device, mostly in aten::_local_scalar_dense (cudaStreamSynchronize)"
    assert "calls that wait take 1.25 ms a step and rank: 1 call" in found.evidence


def test_work_that_takes_longer_in_one_step(job, cpu):
    """The fourth of five steps has a pause of 2000 µs: over the four recorded periods that is 500 a step."""
    ranks = cpu(USUAL, USUAL, USUAL)
    for rank in ranks:
        for row in rank.rows:
            row["ts"] += 2000 if row["ts"] >= 3 * 950 + 20 else 0
    found = first(job(*ranks))
    assert (found.code, found.where.step, found.worth_s) == (FindingCode.SLOW_STEPS, "ProfilerStep#3", pytest.approx(500 * US))
    assert found.command.endswith("--scale '*=steps'")


def test_a_device_that_slows_down_from_step_to_step(job):
    """Kernels of 10 µs, 1 µs more in each step: 60 × 3.5 µs a step more than in the first, in the mean of steps 1 to 6."""
    rank, zero = DrawnRank(), 0
    for step in range(7):
        length = 60 * (10 + step) + 40
        rank.step(step, zero, length)
        for i in range(60):
            rank.operator("aten::mm", zero + 5 * i, 5)
            rank.call("cudaLaunchKernel", zero + 5 * i + 1, 2, ("gemm_kernel", zero + 6 + (10 + step) * i, 10 + step))
        rank.call("cudaDeviceSynchronize", zero + 300, length - 302)
        zero += length
    found = first(job(rank))
    assert (found.code, found.worth_s) == (FindingCode.SLOWING, pytest.approx(60 * 3.5 * US, rel=0.01))


def test_a_job_without_times_is_refused(job, gpu):
    read = lumos.read(job(gpu()))
    never = replace(lumos.build(read), measured_start=None, measured_end=None)
    with pytest.raises(LumosError, match=r"rank0\.json: diagnose needs a measured job"):
        lumos.diagnose(read, graph=never)


def test_a_recording_that_is_unsound_is_refused(job, gpu):
    rank = gpu()
    lost = [row for row in rank.rows if row["cat"] == "kernel"][::10]
    rank.rows = [row for row in rank.rows if row not in lost]
    path = job(rank)
    with pytest.raises(LumosError, match="diagnose: the recording cannot give a sound answer"):
        lumos.diagnose(path)
    forced = lumos.diagnose(path, force=True)
    assert forced.trust.grade == "unsound"
    assert all(found.command.endswith(" --force") for found in forced.findings)


def test_what_the_recording_lacks(job, cpu):
    assert {lack.code for lack in lumos.diagnose(job(*cpu(USUAL))).lacks} == {"one-rank", "no-device", "no-host-rows"}
    assert "two-ranks" in {lack.code for lack in lumos.diagnose(job(*cpu(USUAL, USUAL))).lacks}


def test_the_largest_worth_comes_first_and_a_cause_is_fixed_before_its_victims(job, cpu):
    """Rank 1 takes 300 µs more, and the all-reduce 500. Half of all b alone would save 400, but 250 once rank 1 is as its peers."""
    slow = [("aten::a", 400), *[("aten::b", 80)] * 10]
    folder = job(*cpu(USUAL, slow, USUAL, meet=500))
    found = lumos.diagnose(folder).findings
    assert [each.code for each in found] == [FindingCode.EXPOSED_COMMUNICATION, FindingCode.SLOW_RANK]
    assert [each.worth_s for each in found] == [pytest.approx(500 * US), pytest.approx(300 * US)]
    case = case_of(read := lumos.read(folder), lumos.build(read), (str(folder),))
    prices = [case.ask({"scale": words}) for words in ({"aten::b": 0.5}, {"rank1:*": "peers"})]
    priced = [case.finding(FindingCode.STALL, "", case.at_longest(case.counted), price, evidence="", fix="") for price in prices]
    assert [each.worth_s for each, _ in priced] == [pytest.approx(400 * US), pytest.approx(300 * US)]
    assert [each.worth_after_s for each in case.one_after_another(priced)] == [pytest.approx(300 * US), pytest.approx(250 * US)]


@pytest.mark.skipif("LUMOS_TRACES" not in os.environ, reason="LUMOS_TRACES is not set: it names the folder of public traces")
def test_the_stage_with_the_output_head_comes_first():
    """The published analysis of this job blames its last stage: ranks 6 and 7."""
    result = lumos.diagnose(f"{os.environ['LUMOS_TRACES']}/straggler-8gpu")
    found = result.findings
    assert (found[0].code, found[0].where.ranks) == (FindingCode.UNEVEN_STAGES, (6, 7))
    assert found[0].worth_s == pytest.approx(0.517, abs=0.001)
    (refused,) = (each.message for each in result.lacks if each.code == "not-priced")
    assert refused.startswith("what lumos whatif --set vpp=2 would save is not known: the recording has params-all-gather")
