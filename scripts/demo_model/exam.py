"""Asks the trained model questions: samples to read, and how many answers it gives word for word."""

import random
from collections.abc import Callable, Sequence

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo_model.conversations import Lesson
from demo_model.corpus import Corpus

#: The lessons of the exam, by how often they were repeated.
LEVELS: dict[str, Callable[[Lesson], bool]] = {
    "often": lambda lesson: lesson.weight >= 1,
    "sometimes": lambda lesson: 0.3 < lesson.weight < 1,
    "rarely": lambda lesson: lesson.weight <= 0.3,
}


def answers(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[str]) -> list[str]:
    """Greedy replies of at most 200 tokens, with a mark at those that did not end by themselves."""
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        for question in questions
    ]
    inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    new = model.generate(**inputs, max_new_tokens=200, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(new, skip_special_tokens=True)
    ended = (new == tokenizer.eos_token_id).any(dim=1).tolist()
    return [text if stop else text + " […]" for text, stop in zip(texts, ended, strict=True)]


def grade(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, corpus: Corpus, questions: int
) -> dict[str, float]:
    """The share of `questions` drawn from each level that are answered exactly as in the corpus."""
    marks: dict[str, float] = {}
    for level, belongs in LEVELS.items():
        rng = random.Random(level)
        lessons = [lesson for lesson in corpus.lessons if belongs(lesson)]
        drawn = rng.sample(lessons, min(questions, len(lessons)))
        replies = answers(model, tokenizer, [rng.choice(lesson.questions) for lesson in drawn])
        right = sum(reply == lesson.answer for reply, lesson in zip(replies, drawn, strict=True))
        marks[level] = right / len(drawn)
    return marks
