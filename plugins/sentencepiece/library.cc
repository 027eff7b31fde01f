#include <string>

#include <sentencepiece_processor.h>

#include <ctitan/error.h>

#include "library.h"

struct library {
    sentencepiece::SentencePieceProcessor processor;
};

int library_open(struct library **library, const char *model, size_t size)
{
    *library = new struct library;
    const auto status =
        (*library)->processor.LoadFromSerializedProto(std::string_view(model, size));

    if (status.ok())
        return 0;
    library_close(*library);
    *library = nullptr;
    return ct_fail(CT_ECONFIG, "SentencePiece's library: %s", status.ToString().c_str());
}

void library_close(struct library *library)
{
    delete library;
}

int32_t library_count(const struct library *library)
{
    return library->processor.GetPieceSize();
}

int32_t library_bos(const struct library *library)
{
    return library->processor.bos_id();
}

int32_t library_eos(const struct library *library)
{
    return library->processor.eos_id();
}

int32_t library_find(const struct library *library, const char *piece)
{
    const int id = library->processor.PieceToId(piece);

    return library->processor.IdToPiece(id) == piece ? id : -1;
}

const char *library_piece(const struct library *library, int32_t id, size_t *size,
                          enum piece_kind *kind)
{
    const auto &processor = library->processor;
    const std::string &piece = processor.IdToPiece(id);

    *size = piece.size();
    *kind = processor.IsControl(id)   ? PIECE_CONTROL
            : processor.IsUnknown(id) ? PIECE_UNKNOWN
            : processor.IsByte(id)    ? PIECE_BYTE
                                      : PIECE_PLAIN;
    return piece.c_str();
}

int64_t library_encode(const struct library *library, const char *text, size_t size,
                       int32_t *tokens, struct ct_text_span *spans, size_t room)
{
    const auto encoded =
        library->processor.EncodeAsImmutableProto(std::string_view(text, size));
    const size_t count = encoded.pieces_size();

    for (size_t i = 0; tokens && i < count && i < room; i++) {
        const auto piece = encoded.pieces(static_cast<int>(i));

        tokens[i] = static_cast<int32_t>(piece.id());
        if (spans)
            spans[i] = {piece.begin(), piece.end()};
    }
    return static_cast<int64_t>(count);
}
