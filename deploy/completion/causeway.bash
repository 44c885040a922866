# Completion of Causeway's programs for bash. Once in a shell:    source deploy/completion/causeway.bash
# For all users: copy it to /etc/bash_completion.d/causeway. Flags and commands come from the program's own --helpfull.

_causeway_flags() { "$1" --helpfull 2>/dev/null | sed -n 's/^  \(--[a-z0-9_]*\)  .*/\1/p'; }
_causeway_commands() { "$1" --helpfull 2>/dev/null | sed -n '1,/^ *$/s/^causewayctl //p' | sed 's/ | /\n/g' | grep -o '^[a-z][a-z0-9-]*' | sort -u; }

_causeway() {
  local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  local flag=
  # Bash splits at "=": --config= run.yaml are three words.
  [ "$word" = "=" ] && { flag=$before; word=; }
  [ "$before" = "=" ] && flag=${COMP_WORDS[COMP_CWORD - 2]}
  case $flag in
    --config|--data|--token_file|--site_tokens|--tls_*|--membership_t*|--metrics_file|--dump_local)
      mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --*_dir|--out|--evaluate|--assets|--export_assets) mapfile -t COMPREPLY < <(compgen -d -- "$word"); return ;;
    --log_format) mapfile -t COMPREPLY < <(compgen -W "text json" -- "$word"); return ;;
    --*) COMPREPLY=(); return ;;
  esac
  if [ "${program##*/}" = causewayctl ] && [ "$COMP_CWORD" -eq 1 ] && [[ $word != -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_causeway_commands "$program")" -- "$word")
  elif [[ $word == -* ]]; then
    compopt -o nospace 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -S = -W "$(_causeway_flags "$program")" -- "$word")
  elif [ "${COMP_WORDS[1]}" = plan ] && [ "$COMP_CWORD" -eq 2 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | sed -n 's/^  plan \([a-z][a-z-]*\)  .*/\1/p') round" -- "$word")
  elif [ "${COMP_WORDS[1]}" = set ]; then
    compopt -o nospace 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -S = -W "$("$program" settings 2>/dev/null | sed 's/ .*//')" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}

complete -F _causeway causewayctl causeway-worker causeway-coordinator
