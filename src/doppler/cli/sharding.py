"""`dop shard`: a workload becomes a graph."""

from typing import Annotated

import typer

from doppler.cli.options import AsJson, Force, GraphOutput, complete_workload
from doppler.cli.output import amount, print_json, showing_progress, stdout, take_stdout
from doppler.errors import ConfigError


def shard(
    name: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            autocompletion=complete_workload,
            help="A name from `dop list workloads`.",
        ),
    ],
    output: GraphOutput,
    parts: Annotated[
        int | None,
        typer.Option(min=1, help="Pieces to cut each operation into; by default the paper's."),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--size", metavar="NAME=VALUE", help="A size of the workload; may be repeated."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME", help="`paper`: least communication; `even`: rows only.")
    ] = "paper",
    cuts: Annotated[
        list[str] | None,
        typer.Option(
            "--cut", metavar="OP=2,1,4", help="Fix an operation's cut by hand; may be repeated."
        ),
    ] = None,
    abstract_costs: Annotated[
        bool, typer.Option("--abstract-costs", help="Add the costs of the paper authors' files.")
    ] = False,
    preaggregate: Annotated[
        int, typer.Option(min=0, metavar="N", help="Sum partial results in groups of N first.")
    ] = 0,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Where inputs are: `resident`, on each device that reads them, in its memory (the "
            "default); `marked`: weights resident, data streamed from the host; `everywhere`: on "
            "every device, in no memory.",
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Cut a workload's operations into pieces and write the graph of them.

    Example: dop shard llama-block --parts 4 --size sequence=2048 -o graph.json
    """
    from doppler.base.writing import check_output
    from doppler.graph import Graph, write_graph
    from doppler.graph.io import FORMAT
    from doppler.programs.registry import parse_sizes, workload
    from doppler.sharding import shard as shard_program

    take_stdout(output, as_json=as_json)
    check_output(output, kind=FORMAT, force=force)
    found = workload(name)
    settings = parse_sizes(found, sizes or [])
    if "parts" in found.sizes and parts is not None:
        settings.setdefault("parts", parts)
    with showing_progress():
        built = found.build(**settings)
        if isinstance(built, Graph):
            no_parts = parts is not None and "parts" not in found.sizes
            if cuts or abstract_costs or preaggregate or inputs or no_parts:
                raise ConfigError(
                    f"workload `{name}` is a graph already: there is nothing to shard",
                    hint="leave out --parts, --cut, --abstract-costs, --preaggregate and --inputs",
                )
            graph = built
        else:
            graph = shard_program(
                built,
                parts or found.parts,
                method=method,
                partitions=dict(_cut(text) for text in cuts or []),
                abstract_costs=abstract_costs,
                preaggregate=preaggregate,
                inputs=inputs or "resident",
            )
    write_graph(graph, output, force=force)
    count = int(graph.is_input.sum())
    if as_json:
        print_json(
            {
                "graph": str(output),
                "workload": name,
                "vertices": graph.num_vertices,
                "inputs": count,
                "edges": graph.num_edges,
                "flops": float(graph.flops.sum()),
                "digest": graph.digest(),
            }
        )
    else:
        stdout().print(
            f"{output}: {graph.num_vertices} vertices ({count} inputs), {graph.num_edges} edges, "
            f"{amount(float(graph.flops.sum()), 'FLOP')}"
        )


def _cut(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, numbers = text.partition("=")
    try:
        if not equals:
            raise ValueError
        return name, tuple(int(n) for n in numbers.split(","))
    except ValueError:
        raise ConfigError(f"cut `{text}` is not of the form op=2,1,4") from None
