// One agent on Elastic's OpAMP client for Node.js, over HTTP.
//
//     node agent.js ENDPOINT [KEY=VALUE]…
//
// Prints what happens as JSON, one event a line, and runs until standard input ends.
'use strict';

const diagnostics = require('node:diagnostics_channel');
const {
    AgentCapabilities,
    DIAG_CH_SEND_FAIL,
    DIAG_CH_SEND_SUCCESS,
    RemoteConfigStatuses,
    createOpAMPClient,
} = require('@elastic/opamp-client-node');

const say = (event, fields = {}) => console.log(JSON.stringify({event, ...fields}));
const hex = (bytes) => Buffer.from(bytes).toString('hex');

// Parses every file as JSON; throws when one is not.
function decode(remoteConfig) {
    const files = {};
    for (const [name, file] of Object.entries(remoteConfig.config.configMap)) {
        files[name] = JSON.parse(Buffer.from(file.body).toString('utf8'));
    }
    return files;
}

function receive(client, {remoteConfig}) {
    if (!remoteConfig) {
        return;
    }
    const hash = hex(remoteConfig.configHash);
    say('offered', {hash});
    const status = {lastRemoteConfigHash: remoteConfig.configHash};
    try {
        const files = decode(remoteConfig);
        client.setRemoteConfigStatus({...status, status: RemoteConfigStatuses.RemoteConfigStatuses_APPLIED});
        say('applied', {hash, files});
    } catch (error) {
        client.setRemoteConfigStatus({
            ...status,
            status: RemoteConfigStatuses.RemoteConfigStatuses_FAILED,
            errorMessage: String(error),
        });
        say('failed', {hash, error: String(error)});
    }
}

const [endpoint, ...pairs] = process.argv.slice(2);
const attributes = Object.fromEntries(pairs.map((pair) => pair.split(/=(.*)/s).slice(0, 2)));
const {'service.name': name = 'node', ...nonIdentifyingAttributes} = attributes;

let connected = false;
diagnostics.subscribe(DIAG_CH_SEND_SUCCESS, () => {
    if (!connected) {
        connected = true;
        say('connected');
    }
});
diagnostics.subscribe(DIAG_CH_SEND_FAIL, ({err}) => say('connect-failed', {error: String(err)}));

const client = createOpAMPClient({
    endpoint,
    capabilities:
        AgentCapabilities.AgentCapabilities_AcceptsRemoteConfig |
        AgentCapabilities.AgentCapabilities_ReportsRemoteConfig,
    heartbeatIntervalSeconds: 1,
    diagEnabled: true,
    onMessage: (data) => receive(client, data),
});
client.setAgentDescription({identifyingAttributes: {'service.name': name}, nonIdentifyingAttributes});
client.start();
// Reading keeps the process alive; the client's own timers do not.
process.stdin.resume();
process.stdin.on('end', () => client.shutdown());
