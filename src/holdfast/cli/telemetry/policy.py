"""``holdfast policy``: the rules that a bucket must enforce for telemetry, as documents, and whether it does."""

import json
from typing import Annotated

import typer

from holdfast.base.errors import HoldfastError, Invalid
from holdfast.cli import options
from holdfast.cli.shell import Shell, nearest, noun_app
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.telemetry.policy import BROKEN, Bucket, PolicyCheck, documents

app = noun_app(no_args_is_help=False)
PROVIDERS = ("aws",)
ROLES = ("collector", "gc")


@app.callback(invoke_without_command=True)
def policy(
    context: typer.Context,
    provider: Annotated[str, options.choice("--provider", PROVIDERS, "Whose documents", metavar="NAME")] = "aws",
    document: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="One of: bucket, collector, reader, pipeline, gc, operator, lifecycle, encryption."
        ),
    ] = None,
    gc_role_arn: Annotated[
        str | None, typer.Option(metavar="ARN", help="The role that may delete raw blobs (default: none).")
    ] = None,
    sse: Annotated[str | None, typer.Option(metavar="NAME", help="Require AES256 or aws:kms.")] = None,
    sse_kms_key_id: Annotated[str | None, typer.Option(metavar="ID", help="Require this key.")] = None,
    conditional_blobs: Annotated[
        bool, typer.Option("--conditional-blobs", help="Require If-None-Match for raw blobs too.")
    ] = False,
) -> None:
    """Print policies that protect accepted telemetry, and check a live store for them.

    Policies are for the bucket and prefix of --store.
    """
    if context.invoked_subcommand is not None:
        return
    shell = Shell.of(context)
    spec = StoreSpec.parse(shell.settings.store.uri, shell.settings)
    if spec.scheme != "s3":
        raise Invalid(f"{spec.uri} is not a bucket of {provider}", remedy="give --store s3://bucket/prefix")
    bucket = Bucket(
        spec.place,
        spec.prefix,
        gc_role_arn=gc_role_arn,
        sse=sse,
        sse_kms_key_id=sse_kms_key_id,
        conditional_blobs=conditional_blobs,
    )
    found = documents(bucket)
    if document == "encryption" and sse is None:
        raise Invalid("--document encryption: no encryption is required", remedy="name one by --sse")
    if document is not None and document not in found:
        raise Invalid(f"--document: unknown value {document!r}", remedy=nearest(document, found, "use one of"))
    value = found if document is None else found[document]
    if shell.out.as_json:
        shell.out.document(value)
        return
    for line in json.dumps(value, indent=2).splitlines():
        shell.out.line(line)


@app.command()
async def check(
    shell: Shell,
    role: Annotated[
        str, options.choice("--role", ROLES, "The role of these credentials", metavar="NAME")
    ] = "collector",
) -> None:
    """Try each rule on the live store, under throwaway keys, and report what it does not enforce.

    Run it with the credentials of the role. It exits 1 if a rule is not enforced.
    """
    async with open_store(shell.existing_store(), settings=shell.settings) as store:  # without a cache of objects
        found = [each async for each in PolicyCheck(store, store.ambient, role=role).run()]
    shell.out.table(found, ("rule", "verdict", "detail"))
    bad = [each.rule for each in found if not each.good]
    if bad:
        broken = any(each.verdict == BROKEN for each in found)
        raise HoldfastError(
            f"{len(bad)} of {len(found)} rules do not hold: {'; '.join(bad)}",
            remedy="a role cannot do its work"
            if broken
            else "attach the documents of `holdfast policy`, or accept the risk",
        )
