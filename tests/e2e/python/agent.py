"""One agent on OpenTelemetry Python's OpAMP client, over HTTP.

    agent.py ENDPOINT [KEY=VALUE]…

Prints what happens as JSON, one event a line, and runs until standard input ends.
"""

import json
import sys

from opentelemetry._opamp.agent import OpAMPAgent
from opentelemetry._opamp.callbacks import OpAMPCallbacks
from opentelemetry._opamp.client import OpAMPClient
from opentelemetry._opamp.proto import opamp_pb2


def say(event, **fields):
    """Prints one event."""
    print(json.dumps({"event": event, **fields}), flush=True)


class Callbacks(OpAMPCallbacks):
    """Applies each configuration that the client can decode, and refuses the others."""

    connected = False

    def on_connect(self, agent, client):
        if not self.connected:
            self.connected = True
            say("connected")

    def on_connect_failed(self, agent, client, error):
        say("connect-failed", error=str(error))

    def on_error(self, agent, client, error_response):
        say("error-response", type=error_response.type, error=error_response.error_message)

    def on_message(self, agent, client, message):
        offer = message.remote_config
        if offer is None:
            return
        say("offered", hash=offer.config_hash.hex())
        try:
            files = dict(client.decode_remote_config(offer))
        except Exception as error:  # the client raises its own and json's errors
            self.report(agent, client, offer, opamp_pb2.RemoteConfigStatuses_FAILED, str(error))
            say("failed", hash=offer.config_hash.hex(), error=str(error))
            return
        client.update_effective_config(files, content_type="application/json")
        self.report(agent, client, offer, opamp_pb2.RemoteConfigStatuses_APPLIED)
        say("applied", hash=offer.config_hash.hex(), files=files)

    @staticmethod
    def report(agent, client, offer, status, error=""):
        """Tells the server what became of its offer."""
        changed = client.update_remote_config_status(offer.config_hash, status, error)
        if changed is not None:
            agent.send(client.build_remote_config_status_response_message(changed))


def main():
    endpoint, *pairs = sys.argv[1:]
    attributes = dict(pair.split("=", 1) for pair in pairs)
    client = OpAMPClient(
        endpoint=endpoint,
        agent_identifying_attributes={"service.name": attributes.pop("service.name", "python")},
        agent_non_identifying_attributes=attributes,
    )
    agent = OpAMPAgent(interval=1, callbacks=Callbacks(), client=client)
    agent.start()
    sys.stdin.read()
    agent.stop()


if __name__ == "__main__":
    main()
