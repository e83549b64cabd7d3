/* libb64.so.0d for Triton's perf_analyzer, where the system lacks it: base64 in blocks that may end anywhere.
 *
 * The functions and the layout of their states are those of the public-domain library of this name
 * (http://libb64.sourceforge.net, 1.2), without its line breaks. docker/install.sh compiles it.
 */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* step: characters of a group of four that are written. result: the bits that are left for the next one. */
struct encodestate {
    int step;
    char result;
    int stepcount;
};

/* step: characters of a group that are read. plainchar: the bits that the next one completes. */
struct decodestate {
    int step;
    char plainchar;
};

void base64_init_encodestate(struct encodestate *state)
{
    state->step = state->result = state->stepcount = 0;
}

/* Writes 4 characters for 3 bytes; what is left of a group is for the next block, or the end. */
int base64_encode_block(const char *bytes, int length, char *code, struct encodestate *state)
{
    char *at = code;
    for (int i = 0; i < length; i++) {
        unsigned char byte = bytes[i];
        unsigned char left = state->result;
        *at++ = digits[left | byte >> (2 + 2 * state->step)];
        if (state->step < 2) {
            state->result = byte << (4 - 2 * state->step) & 63;
            state->step++;
        } else {
            *at++ = digits[byte & 63];
            state->step = state->result = 0;
        }
    }
    return at - code;
}

int base64_encode_blockend(char *code, struct encodestate *state)
{
    char *at = code;
    if (state->step) {
        *at++ = digits[(unsigned char)state->result];
        for (int i = state->step; i < 3; i++)
            *at++ = '=';
    }
    *at++ = '\n';
    return at - code;
}

int base64_decode_value(char digit)
{
    for (int value = 0; value < 64; value++)
        if (digits[value] == digit)
            return value;
    return -1;
}

void base64_init_decodestate(struct decodestate *state)
{
    state->step = state->plainchar = 0;
}

/* What is no digit is passed over. */
int base64_decode_block(const char *code, int length, char *bytes, struct decodestate *state)
{
    char *at = bytes;
    for (int i = 0; i < length; i++) {
        int value = base64_decode_value(code[i]);
        if (value < 0)
            continue;
        if (state->step)
            *at++ = state->plainchar | value >> (6 - 2 * state->step);
        state->plainchar = value << (2 + 2 * state->step);
        state->step = (state->step + 1) % 4;
    }
    return at - bytes;
}
