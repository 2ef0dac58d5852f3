"""Each event as one plain sentence, for a terminal. (The page has its own in `static/sentences.js`.)"""

from pagelens.engine import events as ev
from pagelens.engine.events import Event


def sentence(event: Event) -> str:
    """What happened, without the reason."""
    match event:
        case ev.RequestArrived():
            return f"{event.request} arrived with a prompt of {_count(len(event.prompt_token_ids), 'token')}"
        case ev.RequestRejected():
            return f"a request was refused: {event.message}"
        case ev.RequestAborted():
            return f"{event.request} was withdrawn by its user"
        case ev.PrefixLookup(hit_blocks=0):
            return f"the prefix cache holds nothing of {event.sequence}'s {_count(event.num_tokens, 'token')}"
        case ev.PrefixLookup():
            hits = _count(event.hit_blocks, "cached block")
            return f"the first {event.hit_tokens} of {event.sequence}'s {event.num_tokens} tokens lie in {hits}"
        case ev.SequenceAdmitted() | ev.SequenceResumed():
            word = "runs" if isinstance(event, ev.SequenceAdmitted) else "runs again"
            return f"{event.sequence} {word}, {_count(event.num_computed_tokens, 'token')} of it already computed"
        case ev.SequenceForked():
            return f"{event.child} continues {event.parent} and shares its blocks"
        case ev.SequenceScheduled():
            tokens = _count(event.num_tokens, "token")
            return f"{event.sequence} computes {tokens} from position {event.start} on"
        case ev.StepPlanned():
            blocked = f"; {event.blocked} waits" if event.blocked else ""
            return f"{_count(len(event.sequences), 'sequence')} compute {sum(event.num_tokens)} tokens{blocked}"
        case ev.StepLaunched():
            copies = f" after {_count(event.num_copies, 'copy', 'copies')}" if event.num_copies else ""
            return f"the model computes {_count(event.num_tokens, 'token')}{copies}"
        case ev.KernelTraced():
            where = f"layer {event.layer}, KV head {event.kv_head}"
            how = "read" if event.taken_from == "interpreter" else "reads, by its block table,"
            return f"in {where} the kernel {how} {_count(len(event.blocks), 'block')} for {event.sequence}"
        case ev.TokensWritten():
            return f"keys and values of {_count(sum(event.counts), 'token')} lie in their slots"
        case ev.TokensGenerated():
            pairs = zip(event.sequences, event.texts, event.token_ids, strict=True)
            return ", ".join(f"{name} goes on with {repr(text) if text else token}" for name, text, token in pairs)
        case ev.SequenceFinished():
            return f"{event.sequence} ended: {event.reason}"
        case ev.StepCommitted():
            return "the step was over"
        case ev.StepFailed():
            return f"the step failed: {event.error}"
        case ev.EngineHalted():
            return f"the engine halted after {event.after}"
        case ev.EngineContinued():
            return "the engine went on"
    return _block_sentence(event)


def _block_sentence(event: Event) -> str:
    match event:
        case ev.BlockAllocated():
            return f"block {event.block} became logical block {event.index} of {event.sequence}"
        case ev.BlockShared():
            return (
                f"block {event.block} became logical block {event.index} of {event.sequence} too, "
                f"in {event.ref_count} tables now"
            )
        case ev.BlockReleased():
            now = f"{event.ref_count} hold it still" if event.ref_count else f"it is {event.state} now"
            return f"{event.sequence} let go of block {event.block}, {now}"
        case ev.BlockSealed():
            return f"block {event.block} can be found by its content, all of it {event.sequence}'s"
        case ev.BlockUnsealed():
            return f"block {event.block} can be found by its content no more"
        case ev.BlockEvicted():
            return f"cached block {event.block} gave up its content"
        case ev.BlockCopied():
            return (
                f"{event.sequence} writes into block {event.source}, which others hold: it is copied to "
                f"{event.destination} before the launch, and {event.sequence} points there"
            )
        case ev.RequestPreempted():
            return (
                f"{event.request} gave its blocks back ({event.mode}): {event.for_sequence} needs {event.needs}, "
                f"{event.free} are free"
            )
        case ev.BlocksSwappedOut():
            return f"blocks {_list(event.blocks)} of {event.sequence} move to the host"
        case ev.BlocksSwappedIn():
            return f"blocks {_list(event.blocks)} of {event.sequence} come back from the host"
        case ev.HostBlocksFreed():
            return f"{event.sequence} gave up its host blocks {_list(event.host_blocks)}"
    return type(event).__name__


def line(event: Event) -> str:
    """The event with its number, place, kind and reason."""
    why = str(event.why).replace("_", " ")
    return f"{event.seq:>6}  step {event.step} {event.phase:<6}  {sentence(event)}  ({why})"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _list(blocks: list[int]) -> str:
    return ", ".join(map(str, blocks))
