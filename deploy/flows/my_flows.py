"""Your flows. The worker of compose.dev.yaml and compose.yaml finds them here: PYOCO_FLOW_RESOLVER=my_flows:resolve."""

from pyoco import Flow, task


@task
def greet(name: str = "world") -> str:
    return f"Hello, {name}!"


@task
def shout(greet: str) -> str:
    return greet.upper()


FLOWS = {"hello": Flow(name="hello") >> greet >> shout}


def resolve(flow_name: str) -> Flow:
    return FLOWS[flow_name]
