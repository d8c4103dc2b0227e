"""Benchmark the isolation of tenants: latency of one tenant, quiet and while another tenant attacks the server.

The server is a real `penstock serve` for REST and Flight with the small limits of tests/faults/overload_server.py. The
attacks are those of tests/faults/attacks.py, repeated for the time of a round. Clients and server share the machine, so the
ratios include the CPU time of the attacker.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from measure import Grid, Report, ms, p99, seconds

sys.path.pop(0)  # this folder has a module `flight`, which takes precedence over the folder of tests
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from faults.attacks import ATTACKS, Attacker, TenantAttack
from faults.bystander import Bystander
from faults.overload_server import MIB, REQUEST_MEMORY, MemorySampler, OverloadServer, overload_server


@dataclass(frozen=True)
class Numbers:
    seconds: float  # of a round
    scale: int  # multiplies the requests of an attack
    attacks: tuple[str, ...]


FULL = Numbers(seconds=20, scale=2, attacks=tuple(ATTACKS))
QUICK = Numbers(seconds=1, scale=1, attacks=("json_of_empty_objects", "search_storm", "slow_readers_of_rows"))


@dataclass(frozen=True)
class Measurement:
    durations: list[float]  # of the other tenant's requests, in seconds
    peak_bytes: int
    outcomes: Counter[str]  # of the attacker's requests


def measure(report: Report, numbers: Numbers, folder: Path) -> None:
    with overload_server(folder, "--no-ui") as server:
        bystander, attacker = Bystander(server), Attacker(server, numbers.scale)
        bystander.prepare()
        attacker.prepare()
        measure_work(bystander, lambda: False)  # warm-up: fills caches
        idle_bytes = server.memory_bytes()
        quiet = measure_quiet(server, bystander, numbers)
        attacked = {
            name: measure_attack(server, bystander, attacker, ATTACKS[name], numbers) for name in numbers.attacks
        }
        bystander.close()
    report.add(_latencies(quiet, attacked, idle_bytes, numbers))
    report.add(_outcomes(attacked))


def measure_quiet(server: OverloadServer, bystander: Bystander, numbers: Numbers) -> Measurement:
    deadline = time.monotonic() + numbers.seconds
    with MemorySampler(server) as sampler:
        durations = measure_work(bystander, lambda: time.monotonic() < deadline)
    return Measurement(durations, sampler.peak_bytes, Counter())


def measure_attack(
    server: OverloadServer, bystander: Bystander, prepared: Attacker, attack: TenantAttack, numbers: Numbers
) -> Measurement:
    """Measure the other tenant while an attack is repeated, and wait until the server is idle again."""
    outcomes, durations = Counter[str](), list[float]()
    deadline = time.monotonic() + numbers.seconds
    with MemorySampler(server) as sampler:
        while time.monotonic() < deadline:
            attacker = prepared.renew()
            thread = threading.Thread(target=attack.run, args=(attacker,), daemon=True)
            thread.start()
            attacker.engaged.wait()
            until = min(deadline, time.monotonic() + numbers.seconds / 4)
            durations += measure_work(bystander, lambda until=until: time.monotonic() < until)  # type: ignore[misc]
            attacker.released.set()
            thread.join()
            outcomes += attacker.outcomes
        server.wait_until_idle()
    return Measurement(durations, sampler.peak_bytes, outcomes)


def measure_work(bystander: Bystander, should_continue: Callable[[], bool]) -> list[float]:
    """Return the durations of one round of the other tenant's requests, or of more while a condition holds."""
    durations: list[float] = []
    while True:
        durations += [seconds(request) for request in bystander.work().values()]
        if not should_continue():
            return durations


def _latencies(quiet: Measurement, attacked: dict[str, Measurement], idle_bytes: int, numbers: Numbers) -> Grid:
    lines = []
    for name, measured in {"quiet": quiet, **attacked}.items():
        p50s, p99s = ((part(measured.durations), part(quiet.durations)) for part in (median, p99))
        lines.append([
            name.replace("_", " "), f"{len(measured.durations):,}",
            ms(p50s[0]), f"{p50s[0] / p50s[1]:.1f}", ms(p99s[0]), f"{p99s[0] / p99s[1]:.1f}",
            f"{(measured.peak_bytes - idle_bytes) / MIB:+,.0f}",
        ])  # fmt: skip
    return Grid(
        f"Requests of another tenant under attack, {numbers.seconds:g} s each. Times are in ms, memory is the peak in MiB "
        f"beyond the idle server ({idle_bytes / MIB:,.0f} MiB); PENSTOCK_REQUEST_MEMORY is {REQUEST_MEMORY // MIB} MiB",
        ["attack", "requests", "p50", "of quiet", "p99", "of quiet", "memory"],
        lines,
    )


def _outcomes(attacked: dict[str, Measurement]) -> Grid:
    lines = [
        [
            name.replace("_", " "),
            ", ".join(f"{outcome}: {count:,}" for outcome, count in measured.outcomes.most_common()),
        ]
        for name, measured in attacked.items()
    ]
    return Grid("Outcomes of the attacker's requests", ["attack", "outcomes"], lines)


def main() -> None:
    options = _options()
    report = Report("overload", "One tenant under the attacks of another", ["uvicorn", "grpcio"], quick=options.quick)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
        measure(report, QUICK if options.quick else FULL, Path(folder))
    print(f"\nalso in {report.save()}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few attacks and short rounds, to check that it runs")
    parser.add_argument("--folder", help="folder for the temporary workspace (on a disk, not in memory)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
