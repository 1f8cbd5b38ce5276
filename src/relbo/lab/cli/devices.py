"""Options of commands that run on several devices, and how they start JAX."""

import os
import re
import subprocess
import sys
import time
from typing import Any

import typer

DEVICES = typer.Option(None, help="Devices of this machine to use, a power of 2; on a CPU, into so many it is split.")
DISTRIBUTED = typer.Option(
    False, "--distributed", help="One of several processes of a run; SLURM, Open MPI and Kubernetes are recognised."
)
COORDINATOR = typer.Option(None, help="HOST:PORT of process 0, where nothing is recognised.")
NUM_PROCESSES = typer.Option(None, help="How many processes there are, beside --coordinator.")
PROCESS_ID = typer.Option(None, help="Which of them this is, from 0, beside --coordinator.")

HEARTBEAT = 30
"""Seconds without a sign of life after which a process counts as dead."""
LAST_WORDS = 1.0
"""Seconds that process 0, whose end is the end of all, leaves the others to say why they end."""


def start_devices(
    devices: int | None,
    *,
    distributed: bool = False,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Any:
    """Starts JAX on the devices that were asked for.

    Returns:
        Their mesh, over all processes; None if nothing was asked.
    """
    by_hand = {"--coordinator": coordinator, "--num-processes": num_processes, "--process-id": process_id}
    said = [name for name, value in by_hand.items() if value is not None]
    if said and (len(said) < len(by_hand) or not distributed):
        raise ValueError(f"--distributed, {', '.join(by_hand)} go together, got only some of them.")
    if devices is None and not distributed:
        return None
    if devices is not None and (devices < 1 or devices & (devices - 1) != 0 or devices > 4096):
        raise ValueError(f"--devices must be a power of 2, at most 4096, got {devices}.")
    import jax

    from relbo.devices import as_mesh

    if devices is not None:
        jax.config.update("jax_num_cpu_devices", devices)
    if not distributed:
        return as_mesh(devices, "--devices")
    if coordinator is not None and not re.fullmatch(r".+:[0-9]{1,5}", coordinator):
        raise ValueError(f"--coordinator must be HOST:PORT, got {coordinator!r}.")
    if num_processes is not None and num_processes < 1:
        raise ValueError(f"--num-processes must be an integer >= 1, got {num_processes}.")
    if process_id is not None and num_processes is not None and not 0 <= process_id < num_processes:
        raise ValueError(f"--process-id must be from 0 to {num_processes - 1}, got {process_id}.")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from us
    if "--debug" not in sys.argv:
        _watch_the_runtime()
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=HEARTBEAT,
        )
    except (ValueError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(
            f"the processes of the run cannot be joined ({reason}): start them under SLURM, Open MPI or Kubernetes, or "
            "give --coordinator HOST:PORT --num-processes N --process-id I."
        ) from error
    return as_mesh(len(jax.devices()), "the devices of all processes")


CHATTER = r"[WEIF][0-9]{4} |    @ |[*]{3} |Additional GRPC error|:UNKNOWN|[\[]Gloo|RPC: /"
"""How lines begin that the runtime writes about its own business."""
SAID = "relbo-said-why"
WATCH = """
import re, sys
said, died = False, False
for line in sys.stdin:
    said |= line.startswith(sys.argv[1])
    died |= "Terminating process because the JAX distributed service" in line
    if not line.startswith(sys.argv[1]) and not re.match(sys.argv[2], line):
        print(line, end="", file=sys.stderr, flush=True)
if died and not said:
    print("relbo: error: another process of the run ended, never joined or cannot be reached, so this one ended too: "
          "start all again with --resume, on as many devices as you like.", file=sys.stderr)
"""
"""A process of its own: what the runtime does when it gives up ends the process that could have said so."""


def _watch_the_runtime() -> None:
    """Lets a watcher read what the runtime writes to the terminal, and say in one sentence that it gave up."""
    terminal = os.dup(2)
    reader, writer = os.pipe()
    subprocess.Popen(
        [sys.executable, "-S", "-c", WATCH, SAID, CHATTER], stdin=reader, stderr=terminal, start_new_session=True
    )
    os.close(reader)
    os.dup2(writer, 2)
    os.close(writer)
    sys.stderr = os.fdopen(terminal, "w", buffering=1)


def leave(code: int) -> None:
    """Ends a process of several at once: JAX would wait, at exit, for the others, which wait for this one."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    if "--debug" not in sys.argv:
        os.write(2, f"{SAID}\n".encode())
    if jax.process_index() == 0:
        time.sleep(LAST_WORDS)
    os._exit(code)
