"""The event types: one for every allocation, share, copy, eviction and scheduling decision.

An event is a fact that has happened, with *resulting* values (`ref_count=3`, never "+1"), so that a reducer only
assigns. `MemoryMap` rebuilds everything a viewer shows from them; nothing else carries state out of the engine.

    seq   step  phase   why              cause
    9725  31    plan    shared_block     9723    BlockCopied 6 -> 25 for A.2
    9724  31    plan    shared_block     9723    BlockAllocated 25 for A.2
                                         |
    9723  31    plan    next_token       9688    SequenceScheduled A.2: 1 token from position 74
                                                 ... and so on, A.2's own events only, back to RequestArrived

On the wire an event is a JSON object with named fields and its type in `kind`. Fields only ever grow, with
defaults; a reader skips a kind that it does not know and says so.
"""

from enum import StrEnum
from typing import get_args

import msgspec

from pagelens.kernels.walk import ProgramWalk

SCHEMA_VERSION = 1


class Phase(StrEnum):
    """Where in a step an event happened; `idle` is between two steps."""

    IDLE = "idle"
    PLAN = "plan"
    LAUNCH = "launch"
    COMMIT = "commit"


class BlockState(StrEnum):
    """The three states of a physical block. Free = blank + cached."""

    USED = "used"
    CACHED = "cached"
    BLANK = "blank"


class Why(StrEnum):
    """The reason for an event: a closed list, so that it can be filtered, counted and explained."""

    SUBMITTED = "submitted"
    INVALID = "invalid"
    USER_ABORT = "user_abort"
    FITS = "fits"
    PREFIX_HIT = "prefix_hit"
    PREFIX_MISS = "prefix_miss"
    PARALLEL_SAMPLING = "parallel_sampling"
    BEAM_SPLIT = "beam_split"
    NEXT_TOKEN = "next_token"
    PREFILL = "prefill"
    PREFILL_CHUNK = "prefill_chunk"
    RECOMPUTE = "recompute"
    TABLE_GROWS = "table_grows"
    SHARED_BLOCK = "shared_block"
    BLOCK_FULL = "block_full"
    STEP_FAILED = "step_failed"
    CACHE_RESET = "cache_reset"
    LEAST_RECENTLY_USED = "least_recently_used"
    POLICY = "policy"
    SEQUENCE_FINISHED = "sequence_finished"
    PREEMPTED = "preempted"
    COPIED_AWAY = "copied_away"
    SWAPPED_OUT = "swapped_out"
    SWAPPED_IN = "swapped_in"
    OUT_OF_BLOCKS = "out_of_blocks"
    NOTHING_WAITS = "nothing_waits"
    WAITS_FOR_BLOCKS = "waits_for_blocks"
    WAITS_FOR_SEQUENCE_SLOT = "waits_for_sequence_slot"
    WAITS_FOR_TOKEN_BUDGET = "waits_for_token_budget"
    WAITS_AFTER_PREEMPTION = "waits_after_preemption"
    WAITS_FOR_BATCH = "waits_for_batch"
    SCHEDULED = "scheduled"
    MODEL_OUTPUT = "model_output"
    END_OF_SEQUENCE = "end_of_sequence"
    STOP_STRING = "stop_string"
    BEAM_DROPPED = "beam_dropped"
    BEAM_SEARCH_OVER = "beam_search_over"
    MAX_TOKENS = "max_tokens"
    MAX_MODEL_LEN = "max_model_len"
    USER_HALT = "user_halt"
    USER_STEP = "user_step"
    USER_RUN = "user_run"
    USER_PHASE = "user_phase"
    USER_BREAKPOINT = "user_breakpoint"
    USER_TRACE = "user_trace"


class Event(msgspec.Struct, tag_field="kind", tag=True, kw_only=True, gc=False):
    """What every event carries.

    `seq` numbers the events of a run without a gap. `t` is nanoseconds since the run began. `cause` is the `seq` of
    the event that this one follows from, -1 where the cause lies outside the engine (a user, say). `why` is a `Why`,
    typed as text so that a reason added later does not break an older reader.
    """

    seq: int
    step: int
    phase: Phase
    t: int
    why: str
    cause: int = -1


class RequestArrived(Event):
    """A request was accepted and waits. `prompt_texts[i]` is the text that token i adds (empty without tokenizer)."""

    request: str
    sequence: str
    prompt_token_ids: list[int]
    prompt_texts: list[str] = []
    max_tokens: int = 0
    temperature: float = 0.0
    num_samples: int = 1


class RequestRejected(Event):
    """A request was refused at submission; `message` names the value, the limit and the remedy."""

    request: str
    message: str


class RequestAborted(Event):
    """Its user withdrew the request; the blocks of its sequences are released by the events that follow."""

    request: str


class PrefixLookup(Event):
    """The prefix cache was asked for the longest run of sealed blocks that a sequence can reuse."""

    sequence: str
    num_tokens: int
    hit_blocks: int
    hit_tokens: int


class SequenceAdmitted(Event):
    """A waiting sequence runs from now on; `num_computed_tokens` of it came from the prefix cache."""

    sequence: str
    num_computed_tokens: int


class SequenceResumed(Event):
    """A preempted sequence runs again; what the cache did not keep is computed anew."""

    sequence: str
    num_computed_tokens: int


class SequenceForked(Event):
    """`child` continues the tokens of `parent` and shares its blocks (the `BlockShared` events that follow).

    With status "preempted" the parent has no blocks to share, and the child waits to be computed.
    """

    request: str
    parent: str
    child: str
    status: str = "running"


class SequenceScheduled(Event):
    """This step computes `num_tokens` tokens of the sequence, from position `start` on."""

    sequence: str
    start: int
    num_tokens: int


class BlockAllocated(Event):
    """A blank block became entry `index` of the sequence's block table."""

    block: int
    sequence: str
    index: int
    ref_count: int
    state: BlockState


class BlockShared(Event):
    """A block that already holds the right tokens became entry `index` of one more block table."""

    block: int
    sequence: str
    index: int
    ref_count: int
    state: BlockState


class BlockReleased(Event):
    """A table gave up its entry `index`; at `ref_count` 0 the block is free: cached if sealed, else blank."""

    block: int
    sequence: str
    index: int
    ref_count: int
    state: BlockState


class BlockSealed(Event):
    """A full block became addressable by content: `hash` chains over `parent` and the block's tokens (hex)."""

    block: int
    sequence: str
    index: int
    hash: str
    parent: str


class BlockUnsealed(Event):
    """A used block lost its hash: the step that was to fill it failed, or the prefix cache was reset."""

    block: int
    hash: str


class BlockEvicted(Event):
    """A cached block gave up its content, so that the blank block can be allocated."""

    block: int
    hash: str
    state: BlockState


class BlockCopied(Event):
    """Copy-on-write: before `sequence` writes into entry `index`, the shared `source` is copied to `destination`.

    Planned here; the bytes move at the start of the launch.
    """

    source: int
    destination: int
    sequence: str
    index: int


class RequestPreempted(Event):
    """A request gave its blocks back, so that `for_sequence` (needs `needs` blocks, `free` left) can go on.

    `mode` is "recompute" (its tokens will be computed again) or "swap" (blocks that nobody else holds move to the host
    pool, the others stay). `num_computed_tokens[i]` of `sequences[i]` survive, `lost_tokens` do not.
    """

    request: str
    sequences: list[str]
    mode: str
    for_sequence: str
    needs: int
    free: int
    num_computed_tokens: list[int] = []
    lost_tokens: int = 0


class BlocksSwappedOut(Event):
    """Entries `indices` of a table now point to host blocks: the bytes of `blocks` move there first in the launch."""

    sequence: str
    indices: list[int]
    blocks: list[int]
    host_blocks: list[int]


class BlocksSwappedIn(Event):
    """The host blocks of a table's entries `indices` move back into `blocks`, allocated by the events just before."""

    sequence: str
    indices: list[int]
    blocks: list[int]
    host_blocks: list[int]


class HostBlocksFreed(Event):
    """A swapped-out sequence gave its `host_blocks` up without coming back; its table is empty now."""

    sequence: str
    host_blocks: list[int]


class StepPlanned(Event):
    """What this step computes: `num_tokens[i]` tokens of `sequences[i]`, together at most `budget`.

    `why` tells what keeps `blocked`, the first waiting request, from being admitted: it needs `needs` blocks, `free`
    are free of which `watermark` stay free and `promised` are spoken for by sequences still in prefill.
    """

    sequences: list[str]
    num_tokens: list[int]
    budget: int
    num_waiting: int
    blocked: str = ""
    needs: int = 0
    free: int = 0
    watermark: int = 0
    promised: int = 0


class StepLaunched(Event):
    """The moves between the pools, the copies and the model run now, in this order.

    `grid` is the attention launch per layer, `tile` its keys per tile.
    """

    kernel: str
    grid: list[int]
    tile: int = 0
    num_tokens: int = 0
    num_copies: int = 0
    num_swaps: int = 0


class KernelTraced(Event):
    """What the attention launch of one layer read for one sequence and KV head, program by program.

    `taken_from` is "interpreter" (these blocks were really loaded) or "block_table" (derived: a compiled kernel tells
    nobody). `programs` are those of the sequence, of `grid` in all; each has `program`, `first_position`, `num_queries`
    and `tiles`, and each tile `first`, `last` (positions), `key_blocks`, `value_blocks`, and for each head of the group
    `running_max` and `running_sum` of the program's last token. `blocks` are all blocks read. A `tile` of 0 means that
    the kernel has no tiles. With more than `MOST_TILES` in all the first programs are left out.
    """

    sequence: str
    layer: int
    kv_head: int
    kernel: str
    taken_from: str
    grid: list[int]
    blocks: list[int]
    programs: list[ProgramWalk]
    start: int
    num_tokens: int
    group: int = 1
    block_m: int = 0
    block_q: int = 0
    tile: int = 0
    sliding_window: int = 0


class TokensWritten(Event):
    """Keys and values of `counts[i]` tokens of `sequences[i]`, from position `starts[i]`, now lie in their slots."""

    sequences: list[str]
    starts: list[int]
    counts: list[int]


class TokensGenerated(Event):
    """One new token for each of `sequences`; `texts[i]` is the text that it adds (may be empty within a character)."""

    sequences: list[str]
    token_ids: list[int]
    texts: list[str]


class SequenceFinished(Event):
    """The sequence ended; `reason` is its finish reason as the user sees it."""

    sequence: str
    reason: str


class StepCommitted(Event):
    """The step is over. Durations in ns."""

    plan_ns: int
    launch_ns: int
    commit_ns: int


class StepFailed(Event):
    """The launch raised `error`; the sequences of this step end with reason `error`, all others go on."""

    error: str


class EngineHalted(Event):
    """The loop stands still after the phase `after`; submissions queue."""

    after: Phase


class EngineContinued(Event):
    """The loop runs on; `why` says how far: one phase, one step, or until the next halt."""


class UnknownEvent(Event):
    """Stands for an event of a kind that this version does not know, so that `seq` stays gapless."""

    name: str


AnyEvent = (
    RequestArrived
    | RequestRejected
    | RequestAborted
    | PrefixLookup
    | SequenceAdmitted
    | SequenceResumed
    | SequenceForked
    | SequenceScheduled
    | BlockAllocated
    | BlockShared
    | BlockReleased
    | BlockSealed
    | BlockUnsealed
    | BlockEvicted
    | BlockCopied
    | RequestPreempted
    | BlocksSwappedOut
    | BlocksSwappedIn
    | HostBlocksFreed
    | StepPlanned
    | StepLaunched
    | KernelTraced
    | TokensWritten
    | TokensGenerated
    | SequenceFinished
    | StepCommitted
    | StepFailed
    | EngineHalted
    | EngineContinued
)

EVENT_TYPES: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(AnyEvent)}
"""Every kind by its name on the wire."""
