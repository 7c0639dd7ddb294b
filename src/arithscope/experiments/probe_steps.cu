// Adam steps of one linear probe whose weights never leave the chip.
//
// Two blocks of threads, a cluster, keep 16 of the probe's answers, each for half of the rows: weights in registers, the moments
// of Adam in shared memory (as far as they fit, else in registers too). A step multiplies a batch of 32 states with the weights,
// exchanges the sums of the softmax with the other clusters, and updates the weights. Reading weights and moments from memory
// and writing them back, as separate kernels do in every step, takes several times as long.
//
// States are bfloat16. Tensor cores multiply them exactly with other bfloat16 numbers and add in float32, so the other factor
// is taken as the sum of two bfloat16 numbers, which have 16 bits together. Products are of 16 × 16 with 16 × 8 matrices, spread
// over the 32 threads of a warp: rows 0 to 7 of the first are the first parts of 8 columns, rows 8 to 15 the second parts, and
// both halves of the product are added. A thread is addressed by its quad (thread / 4) and its place in it (thread % 4).
//
// Given at compilation: WIDTH, a multiple of 128, and SHARED_PARTS: of how many parts the second moments are in shared memory.

#define THREADS 256
#define WARPS 8
#define COLUMNS 16  // answers of a cluster
#define BATCH 32
#define TILES (WIDTH / 2 / 64)  // of 64 rows, in a block; a warp takes every eighth
#define ROUNDS ((TILES + WARPS - 1) / WARPS)
#define PARTS (2 * ROUNDS)  // each round has two: for columns 0 to 7 and for columns 8 to 15
#define OWN 16              // weights of a thread in a part: 16 rows of one column
#define KEPT_PARTS (PARTS - SHARED_PARTS)
#define HAS_TILE(r) ((r + 1) * WARPS <= TILES || r * WARPS + warp < TILES)  // the last round may not be full

typedef unsigned int word;

__device__ __forceinline__ word pack(float low, float high) {  // two float32 rounded to bfloat16
    word both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ __forceinline__ float low_of(word both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high_of(word both) { return __uint_as_float(both & 0xffff0000u); }

// Two float32 numbers as two pairs of bfloat16 numbers with nearly the same sums.
__device__ __forceinline__ void split(float a, float b, word& first, word& second) {
    first = pack(a, b);
    second = pack(a - low_of(first), b - high_of(first));
}

__device__ __forceinline__ void multiply(float (&sum)[4], const word (&a)[4], word b0, word b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct Rate {
    float step;   // learning rate / (1 - 0.9^t)
    float scale;  // 1 / sqrt(1 - 0.999^t)
};

__device__ __forceinline__ void adam(float& weight, float& first, float& second, float slope, Rate rate) {
    first += 0.1f * (slope - first);
    second = 0.999f * second + 0.001f * slope * slope;
    weight -= rate.step * __fdividef(first, sqrtf(second) * rate.scale + 1e-8f);
}

// The largest of some logits, and the sum of exp of each less that.
struct Sum {
    float top, powers;
};

#define NOTHING Sum{-1e30f, 0.f}

__device__ __forceinline__ Sum joined(Sum a, Sum b) {
    const float top = fmaxf(a.top, b.top);
    return {top, a.powers * __expf(a.top - top) + b.powers * __expf(b.top - top)};
}

// Sums go from cluster to cluster through memory as words of 64 bits, whose lowest two say which of four successive steps they
// belong to: who reads them waits for these, and needs no other signal.
__device__ __forceinline__ void publish(unsigned long long* to, Sum sum, int step) {
    const word low = (__float_as_uint(sum.powers) & ~3u) | (step & 3);
    const unsigned long long both = (unsigned long long)__float_as_uint(sum.top) << 32 | low;
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
}

__device__ __forceinline__ bool read(const unsigned long long* from, int step, Sum& sum) {
    unsigned long long both;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(both) : "l"(from) : "memory");
    sum = {__uint_as_float((word)(both >> 32)), __uint_as_float((word)both & ~3u)};
    return ((word)both & 3) == (step & 3);
}

__device__ __forceinline__ void both_blocks() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ float from_other_block(const float* here, word other) {
    word there;
    float value;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((word)__cvta_generic_to_shared(here)), "r"(other));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
    return value;
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1) probe_steps(
    const char* __restrict__ states,    // [distinct, WIDTH] bfloat16
    const int* __restrict__ rows,       // [steps, BATCH]
    const int* __restrict__ answer,     // [steps, BATCH], -1 where there is none
    const Rate* __restrict__ rates,     // [steps]
    float* __restrict__ weights,        // [3, WIDTH + 1, answers]: weights and moments; the bias is the last row
    unsigned long long* seen,           // [2, clusters, BATCH], zeros
    int answers, int from, int to) {
    extern __shared__ float4 shared[];
    float4* firsts = shared;                                          // [PARTS * 4][THREADS]
    float4* seconds = firsts + PARTS * 4 * THREADS;                   // [SHARED_PARTS * 4][THREADS]
    float* partial = (float*)(seconds + SHARED_PARTS * 4 * THREADS);  // [WARPS / 2][BATCH * COLUMNS]
    float* logits = partial + WARPS / 2 * BATCH * COLUMNS;            // [2][BATCH * COLUMNS], of this block's rows
    Sum* sums = (Sum*)(logits + 2 * BATCH * COLUMNS);                 // [WARPS][BATCH]
    word* slopes = (word*)(sums + WARPS * BATCH);                     // [2][COLUMNS][BATCH / 2], pairs of bfloat16
    float* of_bias = (float*)(slopes + COLUMNS * BATCH);              // [WARPS][COLUMNS]
    float* bias = of_bias + WARPS * COLUMNS;                          // [COLUMNS]
    word* offset = (word*)(bias + COLUMNS);                           // [2][BATCH], in bytes

    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, quad = lane / 4, place = lane % 4;
    const int cluster = blockIdx.x / 2, clusters = gridDim.x / 2, half = blockIdx.x % 2;
    const int first_row = half * (WIDTH / 2) + warp * 64;  // of this warp, in the first round
    const size_t plane = (size_t)(WIDTH + 1) * answers;

    // Part p: 16 neighbouring rows of a column.
    auto position = [&](int p) {
        return (size_t)(first_row + p / 2 * WARPS * 64 + 16 * place) * answers + cluster * COLUMNS + p % 2 * 8 + quad;
    };
    auto exists = [&](int p) { return HAS_TILE(p / 2) && cluster * COLUMNS + p % 2 * 8 + quad < answers; };

    float weight[PARTS][OWN], second[KEPT_PARTS > 0 ? KEPT_PARTS : 1][OWN];
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        float m[OWN], v[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const float* at = weights + position(p) + (size_t)i * answers;
            weight[p][i] = exists(p) ? at[0] : 0.f;
            m[i] = exists(p) ? at[plane] : 0.f;
            v[i] = exists(p) ? at[2 * plane] : 0.f;
            if (p >= SHARED_PARTS) second[p - SHARED_PARTS][i] = v[i];
        }
#pragma unroll
        for (int q = 0; q < 4; q++) {
            firsts[(p * 4 + q) * THREADS + thread] = ((float4*)m)[q];
            if (p < SHARED_PARTS) seconds[(p * 4 + q) * THREADS + thread] = ((float4*)v)[q];
        }
    }
    // Both blocks have the same bias; thread c keeps that of column c, with its moments.
    float own_bias[3] = {};
    float* at_bias = weights + (size_t)WIDTH * answers + cluster * COLUMNS + thread;
    const bool keeps_bias = thread < COLUMNS && cluster * COLUMNS + thread < answers;
    if (keeps_bias)
        for (int i = 0; i < 3; i++) own_bias[i] = at_bias[i * plane];
    if (thread < COLUMNS) bias[thread] = own_bias[0];

    int row = rows[from * BATCH + lane];
    for (int step = from; step < to; step++) {
        const int count = step - from + 1;
        word* here = offset + step % 2 * BATCH;
        if (thread < BATCH) here[thread] = (word)row * (WIDTH * 2);
        __syncthreads();
        const int wanted = answer[step * BATCH + lane];  // read here, for it takes a while to come
        const Rate rate = rates[step];
        if (step + 1 < to) {  // what the next step reads, so that it comes from the cache
            row = rows[(step + 1) * BATCH + lane];
            const int line = blockIdx.x * THREADS + thread;  // of 128 bytes
            if (line < BATCH * (WIDTH / 64)) {
                const size_t next = rows[(step + 1) * BATCH + line / (WIDTH / 64)];
                asm volatile("prefetch.global.L2 [%0];" ::"l"(states + next * (WIDTH * 2) + line % (WIDTH / 64) * 128));
            }
        }

        // Logits: weights are the first factor, states the second, 8 examples at a time. Which rows stand where in the sum does
        // not matter as long as both agree: a thread's four are neighbours.
        float product[2][4][4] = {};
        const char* example_at[4];
#pragma unroll
        for (int e = 0; e < 4; e++) example_at[e] = states + (here[8 * e + quad] + (first_row + 16 * place) * 2);
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
            if (HAS_TILE(r)) {
#pragma unroll
                for (int h = 0; h < 2; h++) {  // 8 of the thread's 16 rows
                    uint4 x[4];
#pragma unroll
                    for (int e = 0; e < 4; e++) x[e] = __ldg((const uint4*)(example_at[e] + r * WARPS * 128) + h);
#pragma unroll
                    for (int i = 0; i < 2; i++)
#pragma unroll
                        for (int c = 0; c < 2; c++) {
                            const float* w = &weight[2 * r + c][8 * h + 4 * i];
                            word a[4];
                            split(w[0], w[1], a[0], a[1]);
                            split(w[2], w[3], a[2], a[3]);
#pragma unroll
                            for (int e = 0; e < 4; e++)
                                multiply(product[c][e], a, i ? x[e].z : x[e].x, i ? x[e].w : x[e].y);
                        }
                }
            }
        float* mine = logits + step % 2 * BATCH * COLUMNS;  // the other block may still read those of the last step
#pragma unroll
        for (int turn = 0; turn < 2; turn++) {  // in two turns, for there is little room
            if (warp / 4 == turn)
#pragma unroll
                for (int c = 0; c < 2; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
#pragma unroll
                        for (int i = 0; i < 2; i++) {
                            const int at = (8 * e + 2 * place + i) * COLUMNS + 8 * c + quad;
                            float* to_here = partial + warp % 4 * BATCH * COLUMNS + at;
                            *to_here = (turn ? *to_here : 0.f) + product[c][e][i] + product[c][e][i + 2];
                        }
            __syncthreads();
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int at = k * THREADS + thread;
            float sum = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS / 2; w++) sum += partial[w * BATCH * COLUMNS + at];
            mine[at] = sum;
        }
        both_blocks();

        // The softmax, in both blocks: a thread has two examples of a column.
        const int in_cluster = thread % COLUMNS, column = cluster * COLUMNS + in_cluster;
        float logit[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int at = k * THREADS + thread, example = at / COLUMNS;
            const float other = from_other_block(mine + at, half ^ 1);
            // Added in the same order in both blocks, so that they have the same numbers.
            logit[k] = column < answers ? bias[in_cluster] + (half ? other + mine[at] : mine[at] + other) : -1e30f;
            Sum sum = {logit[k], 1.f};
#pragma unroll
            for (int far = 1; far < COLUMNS; far *= 2)
                sum = joined(sum, {__shfl_xor_sync(~0u, sum.top, far), __shfl_xor_sync(~0u, sum.powers, far)});
            if (half == 0 && in_cluster == 0)
                publish(seen + (step % 2 * clusters + cluster) * BATCH + example, sum, count);
        }
        Sum sum = NOTHING;
        for (int start = warp; start < clusters; start += 8 * WARPS) {
            Sum some[8];
            bool waiting = true;
            while (waiting) {
                waiting = false;
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    const int at = start + k * WARPS;
                    some[k] = NOTHING;
                    if (at < clusters) waiting |= !read(seen + (step % 2 * clusters + at) * BATCH + lane, count, some[k]);
                }
            }
#pragma unroll
            for (int far = 4; far > 0; far /= 2)
#pragma unroll
                for (int k = 0; k < far; k++) some[k] = joined(some[k], some[k + far]);
            sum = joined(sum, some[0]);
        }
        sums[warp * BATCH + lane] = sum;
        __syncthreads();
        const int present = __popc(__ballot_sync(~0u, wanted >= 0));
        float both = 0.f;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int example = (k * THREADS + thread) / COLUMNS;
            Sum every = NOTHING;
#pragma unroll
            for (int w = 0; w < WARPS; w++) every = joined(every, sums[w * BATCH + example]);
            const int right = __shfl_sync(~0u, wanted, example);
            const float probability = __fdividef(__expf(logit[k] - every.top), every.powers);
            const bool counts = column < answers && right >= 0;
            const float slope = counts ? __fdividef(probability - (right == column ? 1.f : 0.f), present) : 0.f;
            both += slope;
            word part[2];
            split(slope, 0.f, part[0], part[1]);
#pragma unroll
            for (int p = 0; p < 2; p++)
                ((unsigned short*)slopes)[(p * COLUMNS + in_cluster) * BATCH + example] = (unsigned short)part[p];
        }
        both += __shfl_xor_sync(~0u, both, 16);
        if (lane < COLUMNS) of_bias[warp * COLUMNS + lane] = both;
        __syncthreads();

        if (thread < COLUMNS) {
            float slope = 0.f;
            for (int w = 0; w < WARPS; w++) slope += of_bias[w * COLUMNS + thread];
            adam(own_bias[0], own_bias[1], own_bias[2], slope, rate);
            bias[thread] = own_bias[0];
        }

        // Gradients: slopes are the first factor, states the second, 8 rows at a time, of which a thread gets two.
        word a[2][2][4];
        const char* pair_at[4][2];
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int c = 0; c < 2; c++)
                    a[c][e / 2][2 * (e % 2) + i] = slopes[(i * COLUMNS + 8 * c + quad) * (BATCH / 2) + 4 * e + place];
                pair_at[e][i] = states + (here[8 * e + 2 * place + i] + (first_row + 8 * quad) * 2);
            }
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
            if (HAS_TILE(r)) {
#pragma unroll
                for (int q = 0; q < 2; q++) {  // rows 4q … 4q + 3 of both of the thread's eights
                    uint2 x[4][2];
#pragma unroll
                    for (int e = 0; e < 4; e++)
#pragma unroll
                        for (int i = 0; i < 2; i++) x[e][i] = __ldg((const uint2*)(pair_at[e][i] + r * WARPS * 128) + q);
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const int p = 2 * r + c;
                        float m[2][4], v[2][4];
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            *(float4*)m[h] = firsts[(p * 4 + q + 2 * h) * THREADS + thread];
                            if (p < SHARED_PARTS) *(float4*)v[h] = seconds[(p * 4 + q + 2 * h) * THREADS + thread];
                        }
#pragma unroll
                        for (int j = 0; j < 4; j++) {
                            float slope[4] = {};
#pragma unroll
                            for (int k = 0; k < 2; k++) {  // 16 examples each
                                word b[2];
#pragma unroll
                                for (int i = 0; i < 2; i++) {
                                    const uint2 &one = x[2 * k + i][0], &two = x[2 * k + i][1];
                                    b[i] = __byte_perm(j < 2 ? one.x : one.y, j < 2 ? two.x : two.y, j % 2 ? 0x7632 : 0x5410);
                                }
                                multiply(slope, a[c][k], b[0], b[1]);
                            }
#pragma unroll
                            for (int h = 0; h < 2; h++) {
                                const int i = 8 * h + 4 * q + j;
                                float& square = p < SHARED_PARTS ? v[h][j] : second[p < SHARED_PARTS ? 0 : p - SHARED_PARTS][i];
                                adam(weight[p][i], m[h][j], square, slope[h] + slope[h + 2], rate);
                            }
                        }
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            firsts[(p * 4 + q + 2 * h) * THREADS + thread] = *(float4*)m[h];
                            if (p < SHARED_PARTS) seconds[(p * 4 + q + 2 * h) * THREADS + thread] = *(float4*)v[h];
                        }
                    }
                }
            }
    }

#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        float m[OWN], v[OWN];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            ((float4*)m)[q] = firsts[(p * 4 + q) * THREADS + thread];
            if (p < SHARED_PARTS) ((float4*)v)[q] = seconds[(p * 4 + q) * THREADS + thread];
        }
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (exists(p)) {
                float* at = weights + position(p) + (size_t)i * answers;
                at[0] = weight[p][i];
                at[plane] = m[i];
                at[2 * plane] = p < SHARED_PARTS ? v[i] : second[p - SHARED_PARTS][i];
            }
    }
    if (keeps_bias && half == 0)
        for (int i = 0; i < 3; i++) at_bias[i * plane] = own_bias[i];
    both_blocks();  // neither leaves while the other may read its logits
}
