SELECT format, store, generation, through FROM belay_index
