"""``ferrule serve``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from socket import gethostname
from typing import Annotated

import typer

from ferrule.cli import complete
from ferrule.cli.serving.alone import choose, run_alone
from ferrule.cli.serving.apart import device_apart, prefill_of, ranks_here, run_apart
from ferrule.cli.serving.engines import (
    AUTO,
    OWN,
    EngineName,
    TrustCables,
    guest_for,
    members_of,
    refuse_guest,
    run_guest,
)
from ferrule.cli.serving.front import Front
from ferrule.cli.serving.model import (
    DEMO_RANKS,
    MODEL,
    Cp,
    Device,
    Dtype,
    Encrypt,
    ExpertExchange,
    ExpertParallel,
    Graphs,
    InterTokenLimit,
    KvCache,
    MaxContext,
    Pp,
    PrefillDevice,
    PrefillHosts,
    PrefillTp,
    PrefixCache,
    PrefixDisk,
    SelfTest,
    Shares,
    Speculate,
    StreamWeights,
    Threads,
    Tp,
    Weights,
)
from ferrule.cli.serving.models_file import Wanted
from ferrule.cli.serving.options import (
    CommonOptions,
    ModelOptions,
    PlainHttp,
    SslCertfile,
    SslKeyfile,
    TlsSelf,
    adapters_of,
    origins_of,
    prefix_disk_of,
    refuse_in_cluster,
    request_log_of,
    saved_plan,
    stream_weights_of,
    tensor_of,
    tls_of,
)
from ferrule.cli.serving.replicas import ReplicasFlag, parse_replicas, run_replicas
from ferrule.cli.serving.several import (
    AliasFlags,
    MemoryLimit,
    ModelsFile,
    refuse_for_several,
    run_several,
    wanted_models,
)
from ferrule.cli.serving.this_machine import ThisMachine
from ferrule.cluster.home import running_cluster
from ferrule.config import is_loopback
from ferrule.engine.inter_token import parse_inter_token_limit
from ferrule.engine.speculation import parse_speculation
from ferrule.errors import ConfigError
from ferrule.installation import require
from ferrule.serve.answer.backlog import MAX_QUEUE_TIME, parse_queue_time
from ferrule.serve.keys.record import keys_path, read_keys
from ferrule.units import parse_bytes

DEFAULT_PORT = 8420
EXAMPLES = (
    "Examples:\n\n"
    "ferrule serve --demo\n\n"
    "ferrule serve ~/models/Qwen3-8B --tp 2\n\n"
    "ferrule plan ~/models/Qwen3-8B --json > plan.json && ferrule serve ~/models/Qwen3-8B --plan plan.json\n\n"
    "ferrule serve Qwen/Qwen3-8B ~/models/gemma-3-4b --alias 'claude-*=Qwen3-8B' --memory-limit 48GiB\n\n"
    "ferrule serve Qwen/Qwen3-8B --device cuda:0,cuda:1 --replicas 2\n\n"
    "ferrule serve Qwen/Qwen3-8B --pp 2 --max-context 8192 --port 9000\n\n"
    "FERRULE_API_KEY=secret ferrule serve --demo --host 0.0.0.0 --tls-self"
)


app = typer.Typer()


@app.command(epilog=EXAMPLES)
def serve(
    model: Annotated[list[str] | None, MODEL] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Serve the embedded model on two ranks.")] = False,
    tp: Tp = None,
    pp: Pp = None,
    expert_parallel: ExpertParallel = False,
    expert_exchange: ExpertExchange = False,
    cp: Cp = None,
    shares: Shares = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Split as `ferrule plan MODEL --json > FILE` has found out.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; beyond loopback needs a key.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            envvar="FERRULE_PORT",
            min=0,
            max=65535,
            help=f"Port to listen on, 0 for a free one; {DEFAULT_PORT} if left out.",
        ),
    ] = None,
    dtype: Dtype = "auto",
    weights: Weights = None,
    kv_cache: KvCache = "auto",
    device: Device = None,
    max_context: MaxContext = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="FERRULE_API_KEY",
            metavar="KEY",
            help="What clients must send. Better given by the variable: flags are seen in process lists.",
        ),
    ] = None,
    ssl_certfile: SslCertfile = None,
    ssl_keyfile: SslKeyfile = None,
    tls_self: TlsSelf = False,
    plain_http: PlainHttp = False,
    allow_origin: Annotated[
        str | None,
        typer.Option(envvar="FERRULE_ALLOW_ORIGINS", metavar="URL,…", help="Let web pages of these origins use it."),
    ] = None,
    image_urls: Annotated[
        bool,
        typer.Option(
            "--image-urls", envvar="FERRULE_IMAGE_URLS", help="Fetch images that requests name by an https URL."
        ),
    ] = False,
    share_downloads: Annotated[
        bool,
        typer.Option(
            "--share-downloads", envvar="FERRULE_SHARE_DOWNLOADS", help="Be a hub of what was downloaded, for others."
        ),
    ] = False,
    request_log: Annotated[
        str | None,
        typer.Option(
            envvar="FERRULE_REQUEST_LOG",
            metavar="FILE|-",
            help="Write a line of JSON for each request, without its contents.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What clients call the model; the default is its own.")
    ] = None,
    threads: Threads = None,
    self_test: SelfTest = True,
    graphs: Graphs = True,
    prefix_cache: PrefixCache = True,
    prefix_cache_disk: PrefixDisk = None,
    inter_token_limit: InterTokenLimit = "auto",
    max_queue_time: Annotated[
        str,
        typer.Option(
            envvar="FERRULE_MAX_QUEUE_TIME",
            metavar="TIME|off",
            help="Refuse requests (429, Retry-After) whose turn would come later than that, by what was measured.",
        ),
    ] = MAX_QUEUE_TIME,
    speculate: Speculate = "off",
    stream_weights: StreamWeights = None,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="In a cluster: only on these of its hosts.", autocompletion=complete.hosts),
    ] = None,
    here: Annotated[
        bool, typer.Option("--here", help="On this machine alone, until Ctrl-C, although it is in a cluster.")
    ] = False,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby/--no-standby", help="Keep a standby process for each rank, which takes over if the rank dies."
        ),
    ] = True,
    encrypt: Encrypt = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="A LoRA adapter (PEFT) to serve as MODEL:NAME; as often as wanted."),
    ] = None,
    tool_parser: Annotated[
        str,
        typer.Option(metavar="NAME", help="Format of the model's tool calls; auto: by its chat template; or none."),
    ] = "auto",
    models: ModelsFile = None,
    alias: AliasFlags = None,
    replicas: ReplicasFlag = None,
    prefill_tp: PrefillTp = None,
    prefill_hosts: PrefillHosts = None,
    prefill_device: PrefillDevice = None,
    memory_limit: MemoryLimit = None,
    engine: EngineName = AUTO,
    trust_cables: TrustCables = False,
) -> None:
    """Serve a model over the OpenAI API.

    Where this machine is a host of a cluster (`ferrule up`), on the hosts of that; else on this machine. Without --tp,
    --pp and --plan the planner decides how to split it, over the devices that --device allows, and refuses what no
    memory can hold. Of several MODELs the first is loaded at once, others when a request names them.
    """
    given = model or []
    several: list[Wanted] = []
    home = None if here else running_cluster()
    if (
        workers := members_of(home, hosts, engine, trusted=trust_cables)
    ) is not None:  # of a guest, whose server is this process
        home = None
    own: ModelOptions = {
        "dtype": dtype,
        "weights": weights,
        "kv_cache": kv_cache,
        "max_context": max_context,
        "threads": threads,
    }
    whole_experts = expert_parallel or expert_exchange
    if len(given) > 1 or models is not None:
        refuse_for_several({"--plan": plan, "--adapter": adapter, "--demo": demo, "--replicas": replicas})
        refuse_for_several({"--shares": shares, "--expert-parallel": whole_experts})
        refuse_for_several({"--cp": cp, "--prefill-tp": prefill_tp})
        refuse_guest(engine, "several models")
        if home is None:
            refuse_for_several({"--name": name, "--hosts": hosts})
        several = wanted_models(given, models, Wanted("", None, tp, pp, device, tool_parser=tool_parser, **own))
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    common: CommonOptions = {
        "self_test": self_test,
        "graphs": graphs,
        "prefix_cache": prefix_cache,
        "prefix_disk": prefix_disk_of(prefix_cache_disk),
        "inter_token_limit": inter_token_limit,
        "speculate": parse_speculation(speculate).text,
        "stream_weights": stream_weights_of(stream_weights),
        "standby": standby,
        "encrypt": encrypt,
    }
    parse_inter_token_limit(inter_token_limit)
    max_queue_seconds = parse_queue_time(max_queue_time)
    chosen = several[0].model if several else choose(given[0] if given else None, demo=demo)
    adapters = adapters_of(adapter)
    copies = parse_replicas(replicas)
    if copies is not None and plan is not None:
        raise ConfigError("--plan says where the ranks of one copy go: leave it or --replicas out")
    others = {"plan": plan, "replicas": copies, "cp": cp}
    prompts = prefill_of(prefill_tp, prefill_hosts, prefill_device, hosts, cluster=home is not None, **others)
    tp, by_rank = tensor_of(tp, shares, expert_parallel=whole_experts and plan is None)
    saved = saved_plan(plan, tp, pp, hosts, expert_parallel=whole_experts, cp=cp)
    if saved is not None and device is None:
        device = saved.device
    if demo and saved is None and copies is None and tp is pp is cp is None:
        tp = DEMO_RANKS
    if api_key is not None and not api_key.strip():
        raise ConfigError("the API key is empty; give one with --api-key or FERRULE_API_KEY, or none at all")
    keys = keys_path()
    keyed = api_key is not None or read_keys(keys) is not None
    tls = tls_of(ssl_certfile, ssl_keyfile, tls_self, host)
    from rich.console import Console

    console = Console()
    if tls is not None and tls_self:
        console.print(f"certificate {tls.chain}, SHA-256 {tls.fingerprint}", highlight=False, soft_wrap=True)
    origins = origins_of(allow_origin, keyed=keyed or (home is not None and not is_loopback(host)))
    if home is not None:
        require("serve", "ferrule serve")
        refuse_guest(engine, "a cluster that chooses hosts by itself", "name them (--hosts), or say --here")
        from ferrule.cli.cluster.models import cluster_hosts, offered, serve_on_cluster
        from ferrule.cluster.desired import DesiredModel
        from ferrule.serve.models import Aliases
        from ferrule.serve.tools.families import check_parser

        refuse_in_cluster(api_key, request_log, share_downloads=share_downloads)
        check_parser(tool_parser)
        Aliases.parse(alias or ())
        if not is_loopback(host) and tls is None and not plain_http:
            from ferrule.serve.http.listener import in_the_clear

            raise in_the_clear(host)
        if saved is not None:
            saved.require_hosts(cluster_hosts(home), "this cluster")
        desired = DesiredModel(
            model=chosen,
            host=home.settings.host,
            owner=home.settings.host,
            listen=host,
            key=not is_loopback(host),
            certificate=None if tls is None else str(tls.chain.expanduser().absolute()),
            private_key=None if tls is None else str(tls.key.expanduser().absolute()),
            plain_http=plain_http,
            request_log=None if request_log is None else str(Path(request_log).expanduser().absolute()),
            origins=origins,
            image_urls=image_urls,
            max_queue_time=max_queue_time,
            hosts=tuple(each.strip() for each in hosts.split(",")) if hosts else None,
            tensor=tp,
            pipeline=pp,
            device=device,
            plan=None if saved is None else saved.to_json(),
            adapters=tuple(each.text for each in adapters),
            replicas=copies,
            tool_parser=tool_parser,
            aliases=tuple(alias or ()),
            models=offered(several),
            memory_limit=limit,
            expert_parallel=expert_parallel,
            expert_exchange=expert_exchange,
            context_parallel=cp,
            shares=by_rank or None,
            prefill=prompts.ranks,
            prefill_hosts=prompts.hosts,
            prefill_device=prompts.device,
            **own,
            **common,
        )
        serve_on_cluster(console, home, name, port, desired)
        return
    if hosts is not None and workers is None:
        raise ConfigError("--hosts needs a cluster: ferrule up")
    require("serve", "ferrule serve")
    if saved is not None:
        saved.require_hosts({gethostname()}, "this machine")
    requests = request_log_of(request_log)
    if console.is_terminal:  # the imports below take a second, in which a blank screen looks like a hang
        console.print(f"Starting {chosen} …", style="dim", highlight=False)
    from ferrule.engine.host.processes import expecting
    from ferrule.serve.http.listener import listen

    split = any(given is not None for given in (tp, pp, cp))
    ranks = (tp or 1) * (pp or 1) * (cp or 1) if saved is None else saved.plan.world_size
    prefill = ranks_here(console, prompts.ranks, saved)
    alone = not several and copies is None and prefill is None and engine in (AUTO, OWN)
    with (
        listen(
            host,
            DEFAULT_PORT if port is None else port,
            api_key=api_key,
            encrypted=tls is not None or plain_http,
            keyed=keyed,
        ) as listener,
        expecting(ranks, threads, encrypt) if alone else nullcontext() as expected,
    ):
        from ferrule.cli.serving.placing import Placing, placing
        from ferrule.engine import EngineOptions
        from ferrule.engine.device_names import CPU
        from ferrule.engine.host.local_ranks import LocalPlanner
        from ferrule.serve.models import Aliases
        from ferrule.serve.tools.families import check_parser

        check_parser(tool_parser)
        aliases = Aliases.parse(alias or ())
        front = Front(
            listener, host, api_key, keys, requests, tls, origins, image_urls, share_downloads, max_queue_seconds
        )
        if several:
            run_several(console, several, common, limit=limit, aliases=aliases, front=front)
            return
        options = EngineOptions(
            chosen,
            tp or 1,
            pp or 1,
            name=name,
            device=device or CPU,
            adapters=adapters,
            expert_parallel=expert_parallel,
            expert_exchange=expert_exchange,
            context_parallel=cp or 1,
            shares=by_rank,
            **own,
            **common,
        )
        own_flags = {"--plan": plan, "--replicas": copies, "--prefill-tp": prefill}
        guest = guest_for(console, engine, options, own_flags, demo=demo)
        make_room = expected.discard if expected is not None else lambda: None  # they would take the measured cores
        served = {"tool_parser": tool_parser, "aliases": aliases}
        if guest is not None:
            make_room()
            run_guest(console, guest, options, front, workers, **served)
            return
        if copies is not None:
            run_replicas(console, options, copies, split=split, front=front, **served)
            return
        if saved is None:
            place = placing(console, options, make_room, split=split, demo=demo)
        else:
            place = Placing(saved.for_model, ThisMachine(console, threads) if options.device == CPU else None)
        if prefill is not None:
            run_apart(console, options, prefill, device_apart(prompts.device, saved), place.plan, front=front, **served)
            return
        planner = LocalPlanner(standby=standby, expected=expected, choice=place.devices)
        run_alone(console, options, planner, place, front, tool_parser, aliases)
