"""The second turn of a conversation, on a real node: first token with and without the cache, and what keeping a turn costs the turn itself."""
import json
import statistics
import subprocess
import sys
import time

KEY = "5a" * 32
ROUNDS = 5


def text_of(n):
    """About n tokens of history."""
    return " ".join(f"On day {i} the harbour had {i * 3} boats and {i * 7} gulls." for i in range(n // 19))


class Turns:
    def __init__(self, build, place):
        command = [build / "test_helpers/turn_client", "--node", place.node, "--policy", build / "dist/share/tie/policy.toml"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, messages, read="", write="", max_tokens=8):
        self.process.stdin.write(json.dumps({"messages": messages, "read": read, "write": write, "max_tokens": max_tokens, "ignore_eos": True}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            sys.exit(f"turns: {answer['error']}")
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measure(build, history_tokens=1000):
    import support

    found = {"cold": [], "warm": [], "tail_without_ms": [], "tail_with_ms": []}
    with support.real_node() as place:
        turns = Turns(build, place)
        turns.ask([{"role": "user", "content": "Hello"}])
        for number in range(ROUNDS):
            first = [{"role": "user", "content": f"Diary {number}. {text_of(history_tokens)}"}]
            key = KEY[:-2] + f"{number:02x}"
            answer = turns.ask(first, write=key)
            found["tail_with_ms"].append(answer["end_ms"] - answer["last_event_ms"])
            second = first + [{"role": "assistant", "content": answer["text"]}, {"role": "user", "content": "Sum up day three."}]
            cold = turns.ask(second)
            found["tail_without_ms"].append(cold["end_ms"] - cold["last_event_ms"])
            for _ in range(40):
                warm = turns.ask(second, read=key)
                if warm["cached"]:
                    break
                time.sleep(0.1)
            assert warm["text"] == cold["text"], "the cache shows in the text"
            found["cold"].append(cold["first_ms"])
            found["warm"].append(warm["first_ms"])
            found["prompt_tokens"], found["cached_tokens"] = warm["prompt"], warm["cached"]
        turns.close()
    return {name: statistics.median(value) if isinstance(value, list) else value for name, value in found.items()}


def report(build, table):
    f = measure(build)
    table(f"second turn on a node of its own: {f['prompt_tokens']} tokens of prompt, {f['cached_tokens']} of them kept from the first turn; medians of {ROUNDS}",
          ["", "first token"],
          [["computed", f"{f['cold']:.1f} ms"], ["taken over", f"{f['warm']:.1f} ms"], ["sooner by", f"{f['cold'] / f['warm']:.1f}x"]])
    print(f"  from the last event to the sealed end: {f['tail_without_ms']:.2f} ms, while a turn is kept {f['tail_with_ms']:.2f} ms")
    return f
