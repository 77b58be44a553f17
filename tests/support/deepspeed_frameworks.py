"""A program that trains a tiny model on DeepSpeed with Trainer, then with Accelerate: ZeRO-2, CPU offload, one rank.

Args: a directory for Trainer's output. It prints the losses of both and what DeepSpeed used, one JSON object.
"""

import json
import sys

import deepspeed
import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import DummyOptim
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.adam import cpu_adam
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

STEPS, BATCH = 4, 2
CONFIGURATION = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}


def make_model() -> torch.nn.Module:
    set_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2, **ids, **dropout))


def texts() -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(64, (16,), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": tokens, "labels": tokens}] * (STEPS * BATCH)


def train_with_trainer(directory: str) -> list[float]:
    options = TrainingArguments(
        output_dir=directory,
        use_cpu=True,
        deepspeed=CONFIGURATION,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-2,
        max_grad_norm=1.0,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = Trainer(make_model(), options, train_dataset=texts())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def train_with_accelerate() -> list[float]:
    AcceleratorState._reset_state(reset_partial_state=True)  # Trainer's, which allows no second configuration
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=CONFIGURATION))
    model = make_model()
    data = torch.utils.data.DataLoader(texts(), batch_size=BATCH)
    model, optimizer, data = accelerator.prepare(model, DummyOptim(model.parameters(), lr=1e-2), data)
    losses = []
    for batch in data:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    losses = {"trainer": train_with_trainer(sys.argv[1]), "accelerate": train_with_accelerate()}
    used = {"accelerator": type(get_accelerator()).__module__, "adam": cpu_adam.CPUAdamBuilder.__module__}
    print(json.dumps({"losses": losses, **used}), flush=True)
    deepspeed.comm.destroy_process_group()
