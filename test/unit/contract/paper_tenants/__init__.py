"""Features that are not built, written against the contract of a step alone, to see what it cannot say.

Each file has what its feature must tell the scheduler, the step or the memory, type-checked like the package. Where the
contract has no word for it, the file says CANNOT. All together, by the part of the contract that would have to grow:

    lengths (known, low, high; starts on the device)
        eagle3          high is the end of a step's own tokens: nobody reserves what a draft writes beyond them, nor
                        what it writes after the chunk that ends a prompt
        eagle3          a chunk does not know the token behind it, of which the draft's key of its last token is made
        eagle3          penalties, minimum lengths, masks and log-probabilities of several tokens of a row in a step:
                        rows with these verify one at a time
        eagle3          trees: a depth beside the place in the row, an ancestor mask, moves after acceptance
    spaces, stores, states
        eagle3          that a store is advisory
    several models
        eagle3          what one model leaves for another: hidden states of named layers
        eagle3          a slot's buffers as tensors that programs share, in the budget, and reset when a slot is opened
        qwen2_5_vl      a step of an encoder: programs take token ids alone
        qwen2_5_vl      given embeddings that are on the device already, in captured steps, or for a later layer
    positions and keys
        qwen2_5_vl      positions of three rows, and a position that is the index plus an offset of the slot
        qwen2_5_vl      keys of the prefix cache that are not the ids of the input
    roles
        installed_row   pages that are reserved before there is a row, and held after it until a peer has acknowledged
        installed_row   what a role wants to hear: pages final up to low, prompt done, row released
        installed_row   a row without a forward pass, and buffers that travel with it
    ranks
        idle_step       what ranks agree on beside the rows: padded tokens, the program
        idle_step       how a rank that sleeps for want of requests is called when another one has some
        idle_step       numbers of the host, exchanged in a group

The contract can already express:

- rows whose start, length, tokens and KV slots only the device knows, up to a bound for which there is memory;
- several tokens of a row, and 0 to k of them in a result;
- a second model whose pages have the numbers of the first, and its work for the steps of the first;
- the buffers of each slot, and which of them may be lost;
- an encoder without stores;
- keys of an indexer beside latent rows, and the choice that a layer makes for itself and for layers behind it
  (DeepSeek-V3.2, which was a tenant here: `layers/indexer.py`, `layers/attention/choosing.py`);
- an install as a prompt of which all but one token is cached;
- a step without rows.
"""
