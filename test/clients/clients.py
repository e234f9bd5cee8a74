"""The Python clients, as the scripted tests drive them: OpenAI's own, LangChain's ChatOpenAI, and the
Prometheus parser. python.ts starts it; each line of stdin is one call as JSON, each line of stdout its
result or what it raised."""

import json
import sys

import openai
from langchain_openai import ChatOpenAI
from prometheus_client.parser import text_string_to_metric_families

URL, MODEL = sys.argv[1:]
COMMON = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
EMPTY_SCHEMA = {"title": "answer", "type": "object", "properties": {}, "additionalProperties": False}
LOOK = {"type": "function", "function": {"name": "look", "parameters": EMPTY_SCHEMA}}

# The fields that applications fill in though they mean nothing here.
NEUTRAL = {
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logprobs": False,
    "logit_bias": {},
    "reasoning_effort": "low",
    "store": False,
    "service_tier": "auto",
}


def messages_of(ask):
    system = [{"role": "system", "content": ask["system"]}] if "system" in ask else []
    return [*system, {"role": "user", "content": ask["user"]}]


def settings_of(ask):
    names = {"maxTokens": "max_tokens", "topP": "top_p", "temperature": "temperature", "seed": "seed"}
    return {wire: ask[name] for name, wire in names.items() if name in ask}


class OpenAi:
    def __init__(self):
        self.openai = openai.OpenAI(**COMMON)

    def create(self, ask, **more):
        stop = {"stop": ask["stop"]} if "stop" in ask else {}
        return self.openai.chat.completions.create(
            model=MODEL, messages=messages_of(ask), **settings_of(ask), **stop, **more
        )

    def chat(self, ask):
        reply = self.create(
            ask,
            **NEUTRAL,
            tools=[],
            tool_choice="none",
            response_format={"type": "text"},
            parallel_tool_calls=True,
            metadata={"purpose": "test"},
            user="someone",
        )
        [choice] = reply.choices
        return answer(choice.message.content, choice.finish_reason, reply.usage)

    def stream(self, ask):
        pieces, finish, usage = [], None, None
        for chunk in self.create(ask, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                pieces += [choice.delta.content] if choice.delta.content else []
                finish = choice.finish_reason or finish
        return answer("".join(pieces), finish, usage) | {"pieces": len(pieces)}

    def abandon(self, ask, pieces):
        with self.create(ask, stream=True) as stream:
            for _ in range(pieces):
                next(stream)

    def feature(self, name):
        ask = {"user": "Hi", "maxTokens": 1}
        if name == "tools":
            self.create(ask, tools=[LOOK])
        elif name == "response_format":
            schema = {"name": "answer", "schema": EMPTY_SCHEMA}
            self.create(ask, response_format={"type": "json_schema", "json_schema": schema})
        elif name == "responses":
            self.openai.responses.create(model=MODEL, input="Hi")

    def complete(self, prompt, max_tokens):
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens}
        reply = self.openai.completions.create(**body)
        stream = self.openai.completions.create(**body, stream=True)
        pieces = [choice.text for chunk in stream for choice in chunk.choices]
        return [reply.choices[0].text, "".join(pieces)]

    def models(self):
        return [model.id for model in self.openai.models.list()]


class LangChain:
    def model(self, ask, **more):
        stop = {"stop": [ask["stop"]]} if "stop" in ask else {}
        return ChatOpenAI(model=MODEL, **COMMON, **settings_of(ask), **stop, **more)

    def chat(self, ask):
        # batch() runs invoke(), here twice at the same time.
        neutral = NEUTRAL | {"model_kwargs": {"parallel_tool_calls": True, "user": "someone"}}
        reply, other = self.model(ask, **neutral).batch([messages_of(ask)] * 2)
        assert reply.content == other.content, "the two replies of a batch differ"
        return self.answer(reply)

    def stream(self, ask):
        chunks = list(self.model(ask, stream_usage=True).stream(messages_of(ask)))
        whole = sum(chunks[1:], chunks[0])
        return self.answer(whole) | {"pieces": sum(chunk.content != "" for chunk in chunks)}

    def abandon(self, ask, pieces):
        stream = self.model(ask).stream(messages_of(ask))
        for _ in range(pieces):
            next(stream)
        stream.close()

    def feature(self, name):
        ask = {"user": "Hi", "maxTokens": 1}
        if name == "tools":
            self.model(ask).bind_tools([LOOK]).invoke("Hi")
        elif name == "response_format":
            self.model(ask).with_structured_output(EMPTY_SCHEMA).invoke("Hi")
        elif name == "responses":
            self.model(ask, use_responses_api=True).invoke("Hi")

    def answer(self, message):
        usage, finish = message.usage_metadata, message.response_metadata["finish_reason"]
        counts = {"promptTokens": usage["input_tokens"], "completionTokens": usage["output_tokens"]}
        return {"text": message.content, "finish": finish, **counts}


class Prometheus:
    def parse(self, text):
        return [
            {
                "name": family.name,
                "type": family.type,
                "help": family.documentation,
                "samples": [[one.name, one.labels, one.value] for one in family.samples],
            }
            for family in text_string_to_metric_families(text)
        ]


def answer(text, finish, usage):
    counts = {"promptTokens": usage.prompt_tokens, "completionTokens": usage.completion_tokens}
    return {"text": text, "finish": finish, **counts}


def raised(error):
    """An error of the clients, under the name that its users catch it by."""
    name = next(one.__name__ for one in type(error).__mro__ if one.__module__ == "openai")
    return {"name": name, "status": error.status_code, "param": error.param, "message": error.message}


def main():
    parties = {"openai": OpenAi(), "langchain": LangChain(), "prometheus": Prometheus()}
    for line in sys.stdin:
        party, function, *arguments = json.loads(line)
        try:
            result = {"value": getattr(parties[party], function)(*arguments)}
        except openai.APIStatusError as error:
            result = {"raised": raised(error)}
        print(json.dumps(result), flush=True)


main()
