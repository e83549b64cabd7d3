"""Speech packages for WeNet's Triton models where the packages themselves are not installed.

`swig_decoders` and `kaldifeat` lie in this folder, which is not on `sys.path`. The import hook in
`paddlenlp_shims.finder` finds them after all other finders.
"""
