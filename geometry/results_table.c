#include "geometry/results_table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define RECORD(name, dims, type, about)                                                                                \
    { #name, dims, about, type, offsetof(struct geom_records, name) }
#define SUMMARY(name, field, dims, type, about)                                                                        \
    { name, dims, about, type, offsetof(struct geom_summary, field) }

const struct geom_dataset geom_record_datasets[] = {
    RECORD(n, "Pk", AG_H5_I64, "keys in the basis"),
    RECORD(spectrum, "Pkd", AG_H5_F64, "eigenvalues of Sigma (population covariance), descending"),
    RECORD(mu2, "Pk", AG_H5_F64, "|mu|^2"),
    RECORD(ev_r, "Pk", AG_H5_F64, "explained variance of the first r axes"),
    RECORD(gap, "Pk", AG_H5_F64, "(s_r - s_{r+1}) / s_r: how well posed U_r is"),
    RECORD(align_sum, "Pkr", AG_H5_F64, "sum of alignments over the tokens of a role"),
    RECORD(align_count, "Pkr", AG_H5_I64, "tokens of a role with a defined alignment"),
    RECORD(align_undefined, "Pkr", AG_H5_I64, "tokens of a role without one"),
};
const int geom_n_record_datasets = (int)(sizeof(geom_record_datasets) / sizeof(geom_record_datasets[0]));

#define BAND " (95 % percentile bootstrap over units)"
const struct geom_dataset geom_summary_datasets[] = {
    SUMMARY(
        "delta_mu_prompt", delta_prompt, "LH", AG_H5_F64,
        "mean alignment of needle minus distractor tokens: within a prompt, mean over the prompts of a unit, mean over "
        "units"),
    SUMMARY("delta_mu_prompt_lo", delta_prompt_lo, "LH", AG_H5_F64, "lower end" BAND),
    SUMMARY("delta_mu_prompt_hi", delta_prompt_hi, "LH", AG_H5_F64, "upper end" BAND),
    SUMMARY("delta_mu_prompt_p", p, "LH", AG_H5_F64, "two-sided sign-flip p of the unit means"),
    SUMMARY("delta_mu_prompt_q", q, "LH", AG_H5_F64, "Benjamini-Hochberg q over all cells that are not missing"),
    SUMMARY("delta_mu_token", delta_token, "LH", AG_H5_F64,
            "mean alignment of all needle tokens minus that of all distractor tokens, prompts pooled"),
    SUMMARY("delta_mu_token_lo", delta_token_lo, "LH", AG_H5_F64, "lower end" BAND),
    SUMMARY("delta_mu_token_hi", delta_token_hi, "LH", AG_H5_F64, "upper end" BAND),
    SUMMARY("align", align, "LHr", AG_H5_F64, "mean alignment of all tokens of a role, prompts pooled"),
    SUMMARY("layer_align", layer_align, "Lr", AG_H5_F64,
            "mean alignment of a role: within a prompt, mean over heads, over the prompts of a unit, over units"),
    SUMMARY("layer_align_lo", layer_align_lo, "Lr", AG_H5_F64, "lower end" BAND),
    SUMMARY("layer_align_hi", layer_align_hi, "Lr", AG_H5_F64, "upper end" BAND),
    SUMMARY(
        "layer_delta", layer_delta, "L", AG_H5_F64,
        "needle minus distractor alignment: within a prompt, mean over heads, over the prompts of a unit, over units"),
    SUMMARY("layer_delta_lo", layer_delta_lo, "L", AG_H5_F64, "lower end" BAND),
    SUMMARY("layer_delta_hi", layer_delta_hi, "L", AG_H5_F64, "upper end" BAND),
    SUMMARY("ev_r", ev_r, "LH", AG_H5_F64, "explained variance of the first r axes, mean over prompts"),
    SUMMARY("effective_rank", effective_rank, "LH", AG_H5_F64, "exp of the entropy of s_i / tr, mean over prompts"),
    SUMMARY("participation_ratio", participation_ratio, "LH", AG_H5_F64, "(sum s)^2 / sum s^2, mean over prompts"),
    SUMMARY("stable_rank", stable_rank, "LH", AG_H5_F64, "tr / s_1, mean over prompts"),
    SUMMARY("numerical_rank", numerical_rank, "LH", AG_H5_F64, "#{s_i > 1e-11 s_1}, mean over prompts"),
    SUMMARY("condition", condition, "LH", AG_H5_F64, "condition number on the numerical rank, mean over prompts"),
    SUMMARY("mean_dominance", mean_dominance, "LH", AG_H5_F64, "|mu|^2 / (|mu|^2 + tr Sigma), mean over prompts"),
    SUMMARY("gap", gap, "LH", AG_H5_F64, "(s_r - s_{r+1}) / s_r, mean over prompts"),
    SUMMARY("trace", trace, "LH", AG_H5_F64, "tr Sigma, mean over prompts"),
    SUMMARY("scree", scree, "LHD", AG_H5_F64, "s_i / tr, mean over prompts"),
    SUMMARY("explained", explained, "LHD", AG_H5_F64, "cumulative sum of scree"),
    SUMMARY("units", units, "LH", AG_H5_I64, "independent units that carry delta_mu_prompt"),
    SUMMARY("prompts_missing", prompts_missing, "LH", AG_H5_I64, "prompts with r + 1 or fewer keys: missing"),
    SUMMARY("prompts_few_keys", prompts_few_keys, "LH", AG_H5_I64, "prompts with fewer than D + 1 keys: flagged"),
    SUMMARY("prompts_zero_trace", prompts_zero_trace, "LH", AG_H5_I64, "prompts with tr Sigma = 0: ranks are NaN"),
    SUMMARY("tokens_undefined", tokens_undefined, "LH", AG_H5_I64, "tokens without a defined alignment, all roles"),
};
const int geom_n_summary_datasets = (int)(sizeof(geom_summary_datasets) / sizeof(geom_summary_datasets[0]));

int geom_dims(int64_t dims[AG_H5_MAX_RANK], const struct geom_dataset *dataset, const struct geom_results *results,
              int64_t layer) {
    int rank = 0;
    for (const char *letter = dataset->dims; *letter && rank < AG_H5_MAX_RANK; letter++) {
        int64_t extent = 0;
        switch (*letter) {
        case 'P':
            extent = results->from.P;
            break;
        case 'k':
            extent = results->Hk[layer];
            break;
        case 'd':
            extent = results->D[layer];
            break;
        case 'r':
            extent = AG_ROLE_COUNT;
            break;
        case 'L':
            extent = results->from.Ls;
            break;
        case 'H':
            extent = results->H;
            break;
        case 'D':
            extent = results->Dmax;
            break;
        }
        dims[rank++] = extent;
    }
    return rank;
}

void geom_axes(char *out, size_t size, const struct geom_dataset *dataset) {
    static const struct {
        char letter;
        const char *word;
    } words[] = {{'P', "prompt"}, {'k', "KV head"}, {'d', "component"}, {'r', "role"},
                 {'L', "layer"},  {'H', "KV head"}, {'D', "component"}};
    size_t at = 0;
    if (size > 0) out[0] = '\0';
    for (const char *letter = dataset->dims; *letter && at < size; letter++)
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (words[i].letter == *letter)
                at += (size_t)snprintf(out + at, size - at, "%s%s", at ? ", " : "", words[i].word);
}

enum ag_status geom_allocate(void *target, const struct geom_dataset *datasets, int n,
                             const struct geom_results *results, int64_t layer, struct ag_error *err) {
    for (int i = 0; i < n; i++) {
        int64_t dims[AG_H5_MAX_RANK], size = 1;
        const int rank = geom_dims(dims, &datasets[i], results, layer);
        for (int k = 0; k < rank; k++)
            if (!ag_mul(size, dims[k], &size))
                return ag_fail(err, AG_E_MEMORY, "geometry: %s is too large", datasets[i].name);
        double *data = AG_ZEROS(results->arena, double, size, err);
        if (!data) return AG_E_MEMORY;
        const bool is_sum = strcmp(datasets[i].name, "align_sum") == 0;
        for (int64_t k = 0; datasets[i].type == AG_H5_F64 && !is_sum && k < size; k++) data[k] = NAN;
        memcpy((char *)target + datasets[i].offset, &data, sizeof(data)); /* i64 and f64: 8 bytes either way */
    }
    return AG_OK;
}
