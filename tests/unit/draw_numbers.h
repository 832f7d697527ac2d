/* tests/parity/make_draw_numbers.py has written this with transformers 5.24.0 and torch
 * 2.15.0: the probability of each token by some settings. Do not edit. */
/* clang-format off */
enum { NUMBERS = 10, NUMBERS_SEEN = 4 };
static const double numbers_logits[NUMBERS] = {0.5, 2, -1, 1.75, 1, -0.5, 0.25, 3, -2, 1.5};
static const int32_t numbers_seen[NUMBERS_SEEN] = {7, 1, 2, 7};
static const struct {
    struct train_draw settings;
    double probabilities[NUMBERS];
} numbers[] = {
    {{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .repetition_penalty = 1},
     {0.0370735277, 0.166152024, 0.00827222218, 0.129399326, 0.0611239137, 0.0136385887, 0.0288728924, 0.451648028, 0.00304318047, 0.100776297}},
    {{.temperature = 0.7, .top_k = 0, .top_p = 1, .min_p = 0, .repetition_penalty = 1},
     {0.0171364389, 0.146066831, 0.00201043272, 0.102198951, 0.0350050675, 0.00410676533, 0.0119898957, 0.609498017, 0.000481802284, 0.071505799}},
    {{.temperature = 1.8, .top_k = 0, .top_p = 1, .min_p = 0, .repetition_penalty = 1},
     {0.0689412973, 0.158632263, 0.0299617643, 0.138061581, 0.0910158035, 0.0395553051, 0.0600013156, 0.276481598, 0.0171906647, 0.120158407}},
    {{.temperature = 1, .top_k = 4, .top_p = 1, .min_p = 0, .repetition_penalty = 1},
     {0, 0.195939611, 0, 0.152597923, 0, 0, 0, 0.532619085, 0, 0.118843382}},
    {{.temperature = 1, .top_k = 0, .top_p = 0.6, .min_p = 0, .repetition_penalty = 1},
     {0, 0.268941421, 0, 0, 0, 0, 0, 0.731058579, 0, 0}},
    {{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0.08, .repetition_penalty = 1},
     {0.0391826053, 0.175604254, 0, 0.13676073, 0.0646011947, 0, 0, 0.477341852, 0, 0.106509364}},
    {{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .repetition_penalty = 1.5},
     {0.0588093061, 0.135318796, 0.0079589741, 0.205264647, 0.0969601539, 0.0216347347, 0.0458007337, 0.263565024, 0.00482736181, 0.159860268}},
    {{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .repetition_penalty = 0.6},
     {0.00851512025, 0.144774415, 0.00283443731, 0.02972069, 0.0140390599, 0.00313253768, 0.00663158232, 0.766506698, 0.000698963634, 0.0231464966}},
    {{.temperature = 0.6, .top_k = 6, .top_p = 0.9, .min_p = 0.05, .repetition_penalty = 1.3},
     {0, 0.143582343, 0, 0.204276158, 0, 0, 0, 0.517474357, 0, 0.134667143}},
    {{.temperature = 1.4, .top_k = 8, .top_p = 0.95, .min_p = 0.1, .repetition_penalty = 2},
     {0.08910674, 0.12735492, 0, 0.217607313, 0.12735492, 0, 0.0745346076, 0.18202075, 0, 0.18202075}},
};
/* clang-format on */
