"""What the engine says of itself, in the words of the engine that it stands in for."""

from aiohttp import web

from kvquota_fakeengine import exposition
from kvquota_fakeengine.engine import FakeEngine
from kvquota_fakeengine.exposition import Family
from kvquota_fakeengine.llamacpp_metrics import llamacpp_families
from kvquota_fakeengine.misbehaviour import Metrics, Misbehaviour
from kvquota_fakeengine.settings import Speech
from kvquota_fakeengine.sglang_metrics import sglang_families
from kvquota_fakeengine.vllm_metrics import vllm_families


def told(engine: FakeEngine, current: Misbehaviour) -> str:
    """The exposition of this moment, wrong as it is to be."""
    process = _process_families(engine)
    if current.metrics is Metrics.MISSING:
        return exposition.exposition(process)
    families = _engine_families(engine, current)
    if current.metrics is Metrics.RENAMED:
        families = exposition.renamed(families)
    return exposition.exposition([*process, *families])


def answered(engine: FakeEngine, text: str) -> web.Response:
    """An exposition as the engine's server sends it."""
    headers = {"Content-Type": exposition.CONTENT_TYPE}
    if engine.settings.speech is Speech.LLAMACPP:
        headers["Process-Start-Time-Unix"] = str(int(engine.started_at * 1e6))
    return web.Response(body=text.encode(), headers=headers)


def _process_families(engine: FakeEngine) -> list[Family]:
    """Several processes behind one port say nothing of themselves; SGLang always has several, llama.cpp no Python."""
    alone = engine.settings.speech is Speech.VLLM and engine.settings.api_servers == 1
    return exposition.process_families(engine.started_at) if alone else []


def _engine_families(engine: FakeEngine, current: Misbehaviour) -> list[Family]:
    if engine.settings.speech is Speech.SGLANG:
        return sglang_families(engine.schedulers, engine.settings)
    if engine.settings.speech is Speech.LLAMACPP:
        return llamacpp_families(engine.schedulers)
    return vllm_families(engine.schedulers, engine.settings, current.announced_blocks)
