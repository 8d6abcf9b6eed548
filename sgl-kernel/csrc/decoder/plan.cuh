// What follows from a model's shape and the device: who has which outputs, and where everything lies. On the host.
#pragma once

#include "layout.cuh"

namespace decoder {

template <int DIM, int ROWS>
Buffers plan_buffers(const Step& s) {
    Buffers b;
    b.end = 0;
    auto take = [&b](long long packets) {
        long long here = b.end;
        b.end += (8 * packets + 127) / 128 * 128;
        return here;
    };
    b.counter = take(1);
    b.arrived = take((KINDS - 1) * 16);  // of QKV to DOWN, in lines of their own
    b.qkv = take(ROWS * (s.q_heads + 2 * s.kv_heads) * DIM / 2);
    b.parts = take(static_cast<long long>(s.grid) * part_packets(s.q_heads / s.kv_heads, DIM));
    b.attended = take(ROWS * s.q_heads * DIM / 2);
    b.o = take(ROWS * s.hidden / 2);
    b.routed = take(ROWS * s.experts / 2);
    b.activated = take(ROWS * activations(s) / 2);
    b.down = take(ROWS * s.hidden / 2);
    b.best = take(2 * ROWS * s.grid);
    return b;
}

template <int DIM, int ROWS>
Places plan_places(const Step& s, int stages) {
    Places p;
    p.end = 0;
    auto take = [&p](int bytes) {
        int here = p.end;
        p.end += (bytes + 127) / 128 * 128;
        return here;
    };
    // Queries of a group and the new key and value; then each attending warp's maxima and sums, the sinks, and each
    // warp's values.
    int attention = (MAX_GROUP + 2) * head_pitch(DIM) + (2 * ATTENDING + 1) * MAX_GROUP * 4 +
                    ATTENDING * (s.q_heads / s.kv_heads) * DIM * 4;
    int longest = largest(largest(s.hidden, activations(s)), s.q_heads * DIM);
    p.barriers = take((2 * MAX_STAGES + 2) * 8);  // of the ring, then the one for the experts and the ring's `reached`
    p.layers = take(2 * sizeof(Layer));
    p.chosen = take(2 * sizeof(Chosen));
    p.sums = take(ROWS * WARPS * 4);
    p.partials = take(2 * Form<ROWS>::BLOCKS * WARPS * TILE_ROWS * ROWS * 4);
    p.residual = take(ROWS * s.hidden * 2);
    p.gain = take(s.hidden * 2);
    p.vectors = take(largest(largest(ROWS * vector_pitch(longest), attention), 3 * THREADS * 4));
    p.ring = p.end;
    p.end += stages * Form<ROWS>::STAGE_BYTES;
    return p;
}

// Fill in what follows from the shape and the device. False if it does not fit.
template <int DIM, int ROWS>
bool plan(Step& s, int multiprocessors, int shared_limit) {
    // Every block must have a share of each product: its packets tell the others that it is through with the last.
    // Routing needs no packets of all: they have sent those of the product before, and send those of the one behind.
    int pairs = s.hidden < activations(s) ? s.hidden / 2 : activations(s) / 2;
    int outputs[] = {(s.q_heads + 2 * s.kv_heads) * DIM, s.hidden, s.experts, activations(s), s.hidden, s.vocab};
    // With more rows, each would have experts of its own.
    if (s.chosen > 0 && (ROWS > 1 || s.chosen > MAX_CHOSEN || s.experts > MAX_EXPERTS)) return false;
    s.grid = multiprocessors < pairs ? multiprocessors : pairs;
    s.rotation = 0;
    for (int i = 0; i < KINDS; ++i) {
        Kind kind = static_cast<Kind>(i);
        int unit = kind == Kind::LOGITS ? 1 : 2;  // a packet holds two values
        int units = outputs[i] / unit;
        if (units < s.grid && kind != Kind::ROUTE) return false;
        s.deals[i] = {unit, units / s.grid, units % s.grid, s.rotation};
        if (kind != Kind::LOGITS) s.rotation = (s.rotation + units) % s.grid;
    }
    s.buffers = plan_buffers<DIM, ROWS>(s);
    int rest = (shared_limit - plan_places<DIM, ROWS>(s, 0).end) / Form<ROWS>::STAGE_BYTES;
    s.stages = rest < MAX_STAGES ? rest : MAX_STAGES;
    s.places = plan_places<DIM, ROWS>(s, s.stages);
    return rest >= 3;
}

}  // namespace decoder
